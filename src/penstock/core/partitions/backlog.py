"""The limit on unconsumed records in a partition: producers are refused before the disk is full. Off by default.

The unconsumed records begin at the lowest offset that any group has committed in the partition, or at the start of the log if there
is no group. Finding this offset takes a look at all groups, so it is remembered. A commit below it lowers it at once
(:meth:`Backlog.committed`). It is looked up again when the limit seems reached, since later commits or the deletion of a group may
have raised it. So no record passes that should be refused, and each refusal is based on a recent look.

In a cluster, several nodes coordinate groups. Each is asked for its lowest offset when the limit seems reached, and every
:data:`ASK_AGAIN_MS`. Until they answer, their last answers are used; before the first ones, nothing is refused. A node without a copy of
the partition refuses nothing. So in a cluster, the limit may be exceeded for some seconds.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.partitions.replica import Replica
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import BacklogBound, BacklogFull, PenstockError, Reason
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_LOOK_AGAIN_MS: Final = 100
"""Between two looks at all groups for one partition: refused producers retry often."""
ASK_AGAIN_MS: Final = 5_000
"""After this time, the coordinators of a cluster are asked again: there may be new groups, or offsets that were reset."""


@dataclass(slots=True)
class _Least:
    """The lowest committed offset of a partition, the time of the last look, and whether the offset may be higher by now."""

    offset: int | None
    looked_ms: int
    outdated: bool = False


class Backlog:
    """Checked before a record is appended that came through an API with this limit."""

    def __init__(self, broker: "Broker", settings: QueueSettings) -> None:
        self._settings: Final = settings
        self.is_on: Final = bool(settings.backlog_records_max or settings.backlog_bytes_max)
        self._broker = broker
        self._least: dict[PartitionKey, _Least] = {}
        self._asked_ms: dict[PartitionKey, int] = {}

    def check(self, topic: str, partition: int) -> None:
        """:class:`BacklogFull` if the partition has too many unconsumed records."""
        if not self.is_on:
            return
        key = PartitionKey(TopicName(topic), partition)
        now_ms = self._broker.clock.monotonic_ms()
        least = self._least.get(key)
        try:
            source = self._broker.replica(*key)
        except PenstockError as error:
            if error.reason in (Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE):
                return
            raise
        bound = None if least is None else self._reached(source, least)
        if (
            least is None
            or (bound is not None and self._may_be_more(least, now_ms))
            or now_ms - least.looked_ms >= ASK_AGAIN_MS
        ):
            self._ask(key, now_ms)
            # For groups that this node coordinates, the answer is there at once.
            least = self._least.get(key)
            bound = None if least is None else self._reached(source, least)
        self._refuse(source, bound)

    def _ask(self, key: PartitionKey, now_ms: int) -> None:
        """Ask each node that coordinates groups for their lowest offset."""
        broker = self._broker
        offsets = broker.topics.get(OFFSETS_TOPIC)
        if offsets is None:
            return
        leaders = {record.leader: index for index, record in enumerate(broker.topics.partitions(offsets))}
        is_remote = leaders.keys() != {broker.node_id}
        if is_remote and now_ms - self._asked_ms.get(key, -_LOOK_AGAIN_MS) < _LOOK_AGAIN_MS:
            return
        self._asked_ms[key] = now_ms
        found: list[int] = []
        waiting = len(leaders)

        def received(offset: int | PenstockError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(offset, PenstockError):
                # Unknown: keep the last answer.
                waiting = -1
            elif offset is not None:
                found.append(offset)
            if not waiting:
                self._least[key] = _Least(min(found, default=None), self._broker.clock.monotonic_ms())

        for index in leaders.values():
            self._broker.peers.committed(index, GroupId(""), key, received)

    def _refuse(self, source: Replica, bound: BacklogBound | None) -> None:
        if bound is not None:
            self._broker.meters.produce_rejected.add((bound.value,))
            raise BacklogFull(bound, self._text(source, bound))

    @staticmethod
    def _may_be_more(least: _Least, now_ms: int) -> bool:
        return least.outdated or now_ms - least.looked_ms >= _LOOK_AGAIN_MS

    def _reached(self, source: Replica, least: _Least) -> BacklogBound | None:
        start, end = source.log.start_offset, source.log.next_offset
        first = start if least.offset is None else min(max(start, least.offset), end)
        settings = self._settings
        if settings.backlog_records_max and end - first >= settings.backlog_records_max:
            return BacklogBound.RECORDS
        if settings.backlog_bytes_max and source.log.bytes_between(first, end) >= settings.backlog_bytes_max:
            return BacklogBound.BYTES
        return None

    def _text(self, source: Replica, bound: BacklogBound) -> str:
        name = f"{source.topic.name}/{source.index}"
        if bound is BacklogBound.RECORDS:
            return f"{name} has {self._settings.backlog_records_max} unconsumed records, which is the limit; try again later"
        return f"{name} has {self._settings.backlog_bytes_max} unconsumed bytes, which is the limit; try again later"

    def committed(self, _group: GroupId, key: PartitionKey, offset: int) -> None:
        """A group committed an offset."""
        least = self._least.get(key)
        if least is None:
            return
        if least.offset is None or offset < least.offset:
            least.offset = offset
        elif offset > least.offset:
            # This may have been the group with the lowest offset.
            least.outdated = True

    def forget_topic(self, topic: Topic) -> None:
        """The topic is deleted."""
        for index in range(topic.partition_count):
            self._least.pop(PartitionKey(TopicName(topic.name), index), None)
            self._asked_ms.pop(PartitionKey(TopicName(topic.name), index), None)
