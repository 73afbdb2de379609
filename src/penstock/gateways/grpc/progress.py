"""How far a subscription has come, for going on with it at another node: who subscribes, how many messages were given, and where it stands.

Invariant: it moves only for what the client's connection has taken, so what another node is asked for next has neither a gap nor a message twice.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.wire.mq.mq_generated import Message, MessageFrame, SubscribeRequest

Place = tuple[int, int]
"""A partition, and the offset of a record in it."""
PLACES_CHARS_MAX: Final = 8 * 1024
"""Metadata of a call is small. A subscription that stands in more partitions is not taken up again."""


class Progress:
    """Of one subscription."""

    def __init__(self, request: SubscribeRequest) -> None:
        self._request = request
        self.consumer_id = request.consumer_id
        self.is_told = False
        """Whether the client knows that it is subscribed."""
        self.sent = 0
        """Messages that the client was given."""
        self.next_offsets: dict[int, int] = {}
        """By partition, of those of which the client was given something."""

    def gave(self, places: Iterable[Place]) -> None:
        """The client was given these records."""
        for partition, offset in places:
            self.sent += 1
            self.next_offsets[partition] = offset + 1

    @property
    def can_go_on(self) -> bool:
        """Whether another node can go on without the client's knowing."""
        if not self.sent:
            return True
        if self._request.lease_ms:
            # A new stream is sent again what the worker holds, so the worker must know that it is a new one.
            return bool(self._request.max_messages)
        return len(self.places()) <= PLACES_CHARS_MAX

    def request(self) -> SubscribeRequest:
        """What is still asked for."""
        request = SubscribeRequest()
        request.CopyFrom(self._request)
        request.consumer_id = self.consumer_id
        if request.max_messages:
            request.max_messages -= self.sent
        return request

    def places(self) -> str:
        """Where it stands, as another node is told."""
        if self._request.lease_ms:
            return ""
        return ",".join(f"{partition}:{offset}" for partition, offset in self.next_offsets.items())


def read_places(text: str) -> Mapping[int, int]:
    """The next offset by partition, of what another node says; empty when it says nothing."""
    return {
        int(partition): int(offset)
        for partition, _, offset in (each.partition(":") for each in text.split(",") if each)
    }


def relayed_places(name: str) -> Callable[[bytes], list[Place]]:
    """What reads the places of the records in a message of this call."""
    return _of_frame if name == "SubscribeBatch" else _of_message


def _of_message(encoded: bytes) -> list[Place]:
    message = Message.FromString(encoded)
    return [(message.partition, message.offset)]


def _of_frame(encoded: bytes) -> list[Place]:
    return [(message.partition, message.offset) for message in MessageFrame.FromString(encoded).messages]
