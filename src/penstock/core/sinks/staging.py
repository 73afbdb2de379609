"""The staging topic of a sink: where it is, what of it is neither committed nor dropped, and giving the room of the rest back.

In a cluster it has the replicas of ``__sinks``, and is led by whoever speaks for the sinks, as soon as the controller has named that node for it
too. Until then nothing can be committed, and nobody is told more than that it is being loaded.
"""

import sys
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec.structs import replace

from penstock.core.partitions.partition import Partition
from penstock.core.sinks.sink import Sink
from penstock.core.sinks.stored import STAGING_PARTITION
from penstock.core.topics.names import SINKS_TOPIC, staging_topic
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, REQUEST_BYTES_MAX
from penstock.ports import Report

if TYPE_CHECKING:
    from penstock.core.broker import Broker

CUT_BYTES: Final = 16 * MIB
"""Committed bytes that are worth a cut of the staging log."""
_CONFIGS: Final = {
    # What is staged goes when it is committed or dropped, and not before.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    # Which times a record may have is for its target to say.
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "segment.bytes": str(128 * MIB),
    # Each target has its own bound, which is looked at when it is committed.
    "max.message.bytes": str(REQUEST_BYTES_MAX),
}
_ELSEWHERE: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class Staging:
    """The staging topics of all sinks."""

    def __init__(self, broker: "Broker", report: Report) -> None:
        self._broker = broker
        self._report = report

    def new_topic(self, sink: str) -> NewTopic:
        """The staging topic of a sink that has none; in a cluster this node leads it at once."""
        name = staging_topic(sink)
        topics, node_id, live = self._broker.topics, self._broker.node_id, self._broker.cluster.nodes.live()
        found = topics.partition(topics.require(SINKS_TOPIC), 0).replicas
        # A node that is down gets its replica from the controller, which keeps both on the same nodes.
        replicas = [node_id, *(node for node in found if node != node_id and node in live)]
        return NewTopic(name, configs=_CONFIGS, assignments={STAGING_PARTITION: replicas})

    def of(self, sink: Sink) -> tuple[Partition | None, int]:
        """The staging log of a sink, and from where on it holds what is neither committed nor dropped."""
        topic = self._broker.topics.get(sink.staging)
        if topic is None:
            return None, 0
        staged_from = sink.stored.staged_from if topic.topic_id == sink.stored.staging_id else 0
        try:
            partition = self._broker.partition(sink.staging, STAGING_PARTITION)
        except PenstockError as error:
            if error.reason not in _ELSEWHERE:
                raise
            raise _not_yet(sink) from None
        if partition.high_watermark < partition.in_sync.epoch_start:
            # Something that was acknowledged may lie behind what is known to be committed.
            raise _not_yet(sink)
        return partition, staged_from

    def staged_bytes(self, sink: Sink) -> int:
        """About how much is staged; nothing is known of a log that is on its way here."""
        try:
            staging, staged_from = self.of(sink)
        except PenstockError as error:
            if error.reason is not Reason.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return 0
        return 0 if staging is None else staging.log.bytes_between(staged_from, staging.high_watermark)

    def kept_to(self, sink: Sink) -> int:
        """Up to where the staging log has everything that was staged, unless a loss of power took it. Higher offsets are assigned again."""
        topic = self._broker.topics.get(sink.staging)
        if topic is None or topic.topic_id != sink.stored.staging_id:
            return 0
        try:
            staging = self._broker.partition(sink.staging, STAGING_PARTITION)
        except PenstockError:
            # It is not led here yet, or cannot be read: then nothing is committed.
            return sys.maxsize
        return max(staging.high_watermark, staging.in_sync.epoch_start)

    def fit(self, sink: Sink) -> None:
        """After a load: a staging log that lost its end assigns the same offsets again, to new records."""
        sink.stored = replace(sink.stored, staged_from=min(sink.stored.staged_from, self.kept_to(sink)))

    def cut(self, sink: Sink, *, at_least_bytes: int = CUT_BYTES) -> None:
        """Give back the room of what was staged and is committed or dropped."""
        try:
            staging, staged_from = self.of(sink)
            if staging is None:
                return
            log = staging.log
            staged_from = min(staged_from, log.written_offset)
            if log.bytes_between(log.start_offset, staged_from) < at_least_bytes:
                return
            now_ms = self._broker.clock.now_ms()
            # Nothing is synced for this, because the event loop would wait for it: the record in __sinks says what is staged, and
            # what a loss of power brings back is cut again. A producer that sends again what was cut stages it for nobody.
            log.delete_before(staged_from, sync=False)
            log.producers.expire(now_ms, -1)
            for removal in log.retire(now_ms, staging.high_watermark):
                self._broker.on_trash(removal)
        except (PenstockError, OSError) as error:
            self._report(
                f"sink {sink.name}: committed records could not be removed from its staging topic yet ({error})"
            )


def _not_yet(sink: Sink) -> PenstockError:
    return PenstockError(
        Reason.COORDINATOR_LOAD_IN_PROGRESS, f"{sink.staging} is being moved to this node. Try again in a moment."
    )


def check_life(sink: Sink, staging: Partition | None, staging_id: UUID | None) -> None:
    """Refuse offsets of a staging topic that is not there any more: those of the one that has its name are others' records."""
    if staging_id is None or (staging is not None and staging.topic.topic_id == staging_id):
        return
    now = "it has none now" if staging is None else f"it is {staging.topic.topic_id} now"
    raise PenstockError(
        Reason.OFFSET_OUT_OF_RANGE,
        f"the staging topic {staging_id} of sink {sink.name}, which this commit names, no longer exists ({now}): the sink was deleted, or was not used for too long. Open it and stage the batch again",
    )
