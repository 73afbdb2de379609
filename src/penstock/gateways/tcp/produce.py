"""Produce lines that came one behind the other: one call of the core for each topic, one place in the order of answers."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.publish import NewRecord, Placed, Results
from penstock.errors import PenstockError
from penstock.gateways.tcp.answers import Answer, Refusal, encode_lines, produced
from penstock.gateways.tcp.errors import text_for
from penstock.gateways.tcp.requests import Request
from penstock.types import Acks

if TYPE_CHECKING:
    from penstock.gateways.tcp.connection import Slot, TcpConnection


class ProduceRun:
    """Published once; its slot is completed once all of its records are where they shall be."""

    __slots__ = ("_connection", "_left", "_lines", "_records", "_slot")

    def __init__(self, connection: "TcpConnection", lines: list[Request], records: list[NewRecord]) -> None:
        assert len(lines) == len(records) > 0
        self._connection = connection
        self._lines = lines
        self._records = records
        self._left = 0
        self._slot: Slot | None = None

    def publish(self, slot: "Slot") -> None:
        """Hand all to the core. Records count once they are committed: this API has no weaker promise."""
        self._slot = slot
        by_topic = self._by_topic()
        answers: list[Answer | Refusal | None] = [None] * len(self._lines)
        self._left = len(by_topic)
        publish = self._connection.broker.publisher.publish
        caller = self._connection.caller
        for topic, places in by_topic.items():
            records = self._records if len(by_topic) == 1 else [self._records[at] for at in places]
            done = partial(self._done, answers, places)
            try:
                publish(caller, topic, records, Acks.ALL, done)
            except PenstockError as error:
                done([error] * len(records))

    def _by_topic(self) -> dict[str, Sequence[int]]:
        lines = self._lines
        first = lines[0].topic
        if all(request.topic == first for request in lines):
            return {first or "": range(len(lines))}
        places: dict[str, list[int]] = {}
        for at, request in enumerate(lines):
            places.setdefault(request.topic or "", []).append(at)
        return {**places}

    def _done(self, answers: list[Answer | Refusal | None], places: Sequence[int], results: Results) -> None:
        lines = self._lines
        for place, result in zip(places, results, strict=True):
            request = lines[place]
            answers[place] = produced(request, result) if isinstance(result, Placed) else self._refused(request, result)
        self._left -= 1
        if not self._left:
            assert self._slot is not None
            self._slot.complete(encode_lines(answers))

    def _refused(self, request: Request, error: PenstockError) -> Refusal:
        connection = self._connection
        connection.gateway.count_error(error.reason.name.lower())
        return Refusal(False, text_for(error, connection.broker, request.topic, request.partition, None))
