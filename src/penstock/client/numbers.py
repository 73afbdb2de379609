"""How topics and groups stand, in numbers, over HTTP.

The structs are what the broker answers, field by field; fields that a later broker adds are passed over. None is what the
broker does not know without opening many logs.
"""

from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec

from penstock.client.http import HTTP_DEFAULT, TIMEOUT_MS, HttpConnection
from penstock.client.queue_admin import Queue


class PartitionNumbers(msgspec.Struct, frozen=True):
    """One partition."""

    partition: int
    leader: int
    start_offset: int | None
    end_offset: int | None
    records: int | None
    size_bytes: int | None
    segments: int | None
    failed: bool


class FlowNumbers(msgspec.Struct, frozen=True):
    """What went through one gateway since the broker's start."""

    gateway: str
    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


class TopicNumbers(msgspec.Struct, frozen=True):
    """A topic. Sums are over the partitions that are known; rates over the last minute."""

    topic: str
    topic_id: str
    records: int
    size_bytes: int
    segments: int
    partitions_unknown: int
    records_in_per_second: float
    bytes_in_per_second: float
    records_out_per_second: float
    bytes_out_per_second: float
    partitions: list[PartitionNumbers]
    flows: list[FlowNumbers]


class MemberNumbers(msgspec.Struct, frozen=True):
    """One member of a group, with the partitions that it reads, by topic."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: list[tuple[str, list[int]]]


class GroupPartition(msgspec.Struct, frozen=True):
    """Where a group stands in one partition. ``lag_ms`` is the age of the next record that it has not read."""

    topic: str
    partition: int
    committed: int | None
    committed_ms: int | None
    start_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_ms: int | None
    member_id: str | None


class GroupNumbers(msgspec.Struct, frozen=True):
    """A group."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    lag: int
    lag_ms: int | None
    members: list[MemberNumbers]
    members_left_out: int
    partitions: list[GroupPartition]
    queues: list[Queue]


class Numbers:
    """Ask one broker. Use it in a ``with`` statement."""

    def __init__(self, address: str = HTTP_DEFAULT, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._http = HttpConnection(address, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def topic(self, name: str) -> TopicNumbers:
        """How a topic stands."""
        return self._http.get(f"/v1/topics/{quote(name, safe='')}/stats", TopicNumbers)

    def group(self, group: str) -> GroupNumbers:
        """How a group stands."""
        return self._http.get(f"/v1/groups/{quote(group, safe='')}", GroupNumbers)
