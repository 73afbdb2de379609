"""Housekeeping: one log that cannot be looked after does not keep the others from it."""

import asyncio
from pathlib import Path

from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.types import Flush
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until


async def test_a_log_that_fails_in_an_unforeseen_way_does_not_stop_the_retention_of_others(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        for name in ("a", "b", "c"):
            await node.create(name, retention_ms="1000")
            await node.append(name, 0, 3)
        broken = node.broker.partition("b", 0)
        # A value that no code expects there.
        broken.log._config = None  # type: ignore[assignment]
        config = broken.topic.config.log_config()
        node.clock.advance(10_000)
        commit = GroupCommit(asyncio.get_running_loop(), Flush.OS, 1)
        housekeeping = Housekeeping(node.broker, commit, checkpoint_interval_ms=3_600_000, housekeeping_interval_ms=1)
        housekeeping.start()
        try:
            await until(lambda: all(node.broker.partition(name, 0).log.start_offset == 3 for name in ("a", "c")))
        finally:
            await housekeeping.stop()
            commit.close()
            broken.log._config = config
