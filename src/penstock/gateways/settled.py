"""Read your writes: wait until records that were acknowledged before they were committed (acks=0, acks=1) can be read.

Readers see committed records only. A client that produced with acks=1 and then asks where the partition ends expects its record to count, so
the answer waits for the sync that is under way. Nothing is shown earlier than without the wait.
"""

import asyncio

from penstock.core.partition import Partition
from penstock.limits import SETTLE_MS_MAX

_SETTLE_SECONDS_MAX = SETTLE_MS_MAX / 1000


async def settled(*partitions: Partition) -> None:
    """Return once what these partitions had acknowledged at the call is committed, or waiting no longer helps.

    It waits for the leader's own sync until that ends, and for replication for at most ``SETTLE_MS_MAX``, all partitions together.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _SETTLE_SECONDS_MAX
    for partition, offset in [(partition, partition.acknowledged_offset) for partition in partitions]:
        if partition.is_settling(offset):
            await _settled(partition, offset, until)


async def _settled(partition: Partition, offset: int, until: float) -> None:
    moved = asyncio.Event()
    partition.watch(moved.set)
    try:
        while partition.is_settling(offset):
            try:
                async with asyncio.timeout_at(until):
                    await moved.wait()
            except TimeoutError:
                if partition.is_held_here(offset):
                    return
                until = asyncio.get_running_loop().time() + _SETTLE_SECONDS_MAX
            moved.clear()
    finally:
        partition.unwatch(moved.set)


async def committed(partition: Partition, offset: int) -> None:
    """Return once everything below ``offset`` is committed, or cannot be here. The caller bounds the time."""
    moved = asyncio.Event()
    partition.watch(moved.set)
    try:
        while partition.high_watermark < offset and partition.log.failed is None and not partition.gone:
            await moved.wait()
            moved.clear()
    finally:
        partition.unwatch(moved.set)
