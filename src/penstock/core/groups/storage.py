"""Where group records lie: the ports that the rules write through (``core/internal_topic.py`` has the real one).

A group belongs to one partition of the topic, by its id, so all its records are in one order. The topic is compacted: the
last record of a key is the state, so replaying a partition gives back everything that was acknowledged.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import mul
from struct import unpack
from typing import Final, Protocol

from penstock.core.groups.stored import Record
from penstock.errors import Reason
from penstock.limits import GROUP_ID_CHARS_MAX
from penstock.types import Buffer, GroupId, TopicId, TopicName

_MASK: Final = 0xFFFFFFFF
_POWERS: Final = tuple(pow(31, at, 1 << 32) for at in range(2 * GROUP_ID_CHARS_MAX))
"""Of Java's hash, one for each unit that a name may have."""

StoredDone = Callable[[Reason | None], None]
"""Told None once the records are committed, else why they are not."""


class OffsetsLog(Protocol):
    """The offsets topic. Within a partition, answers come in the order of the appends."""

    def partition_for(self, group_id: GroupId) -> int:
        """The partition that a group's records are in; the same for ever."""
        ...

    def append(self, partition: int, records: Sequence[Record]) -> int:
        """Append the records as one batch: all of them or, with PenstockError, none. Returns the offset behind them."""
        ...

    def can_store(self, partition: int) -> bool:
        """Whether an append would not be refused for want of replicas in sync."""
        ...

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Call ``done`` once everything below ``next_offset`` is committed; at once when it is."""
        ...

    def replay(self, partition: int) -> Iterator[tuple[Buffer, Buffer | None]]:
        """Every committed record, oldest first, as key and value."""
        ...


class Partitions(Protocol):
    """What the group rules need to know of topics."""

    def exists(self, topic: TopicName, partition: int) -> bool:
        """Whether there is such a partition."""
        ...

    def topic_id(self, topic: TopicName) -> TopicId | None:
        """The id of the topic that has the name now."""
        ...


def partition_of(owner: str, partitions: int) -> int:
    """The partition for a group, as Kafka chooses it: by Java's hash of the name, whose units are UTF-16."""
    # No group has a longer name, and whoever sends one must not hold up everybody else while it is hashed.
    encoded = owner[:GROUP_ID_CHARS_MAX].encode("utf-16-be", "surrogatepass")
    units = unpack(f">{len(encoded) // 2}H", encoded)
    value: int = sum(map(mul, reversed(units), _POWERS)) & _MASK
    if value >= 1 << 31:
        value = (1 << 32) - value  # the absolute value of a negative 32-bit number
        if value == 1 << 31:
            value = 0  # which the least one does not have
    return value % partitions
