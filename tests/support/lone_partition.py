"""A partition whose only replica is this node, without a broker around it."""

from penstock.core.cluster.in_sync import InSync
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import alone
from penstock.core.topics.topics import Topic
from penstock.log.log import Log
from penstock.ports import Flusher
from penstock.types import Flush, NodeId

NODE = NodeId(1)


def lone_partition(topic: Topic, log: Log, flusher: Flusher, flush: Flush = Flush.SYNC) -> Partition:
    """Partition 0, led from the end of its log."""
    end = log.synced_offset if flush is Flush.SYNC else log.written_offset
    in_sync = InSync(
        NODE,
        alone(NODE),
        log_end=log.next_offset,
        leader_end=end,
        min_in_sync=topic.min_in_sync_of(1),
        now_ms=0,
        log_start=log.start_offset,
    )
    partition = Partition(topic, 0, log, flusher, flush, 0, in_sync=in_sync)
    partition.recount()
    return partition
