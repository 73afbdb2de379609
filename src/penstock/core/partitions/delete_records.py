"""Deleting the oldest records of a partition on request (Kafka's DeleteRecords)."""

from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.log.config import CleanupPolicy
from penstock.operations.records import TO_HIGH_WATERMARK


def delete_records(partition: Partition, before_offset: int) -> int:
    """Delete every record below ``before_offset``, durably once this returns. Returns the first offset that is left."""
    topic = partition.topic
    if topic.internal:
        raise PenstockError(Reason.INVALID_TOPIC, f"{topic.name} is an internal topic: its records cannot be deleted")
    if CleanupPolicy.DELETE not in topic.config.log.cleanup:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"Topic {topic.name} keeps the last record of every key. Add 'delete' to its cleanup.policy first.",
        )
    end = partition.high_watermark
    offset = end if before_offset == TO_HIGH_WATERMARK else before_offset
    if not 0 <= offset <= end:
        raise PenstockError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"Records can be deleted up to offset {end}, not {offset}. Use -1 for all records.",
        )
    if offset > partition.log.start_offset:
        partition.log.delete_before(offset)
        partition.started_later()
    return partition.log.start_offset
