"""Statistics of topics and groups, over HTTP.

The structs are what the broker answers, field by field; fields that a later broker adds are passed over. None is what the
broker does not know without opening many logs.
"""

import msgspec

from penstock.client.http import HttpClient, v1_path
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


class Numbers(HttpClient):
    """Ask one broker. Use it in a ``with`` statement."""

    def topic(self, name: str) -> TopicNumbers:
        """How a topic stands."""
        return self._http.get(v1_path("topics", name, "stats"), TopicNumbers)

    def group(self, group: str) -> GroupNumbers:
        """How a group stands."""
        return self._http.get(v1_path("groups", group), GroupNumbers)
