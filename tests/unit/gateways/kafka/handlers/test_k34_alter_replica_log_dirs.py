from pathlib import Path

import pytest

from penstock.wire.kafka.alter_replica_log_dirs_generated import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestDir,
    AlterReplicaLogDirsRequestTopic,
)
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_node import KafkaNode, versions

KEY = ApiKey.ALTER_REPLICA_LOG_DIRS
UNKNOWN_TOPIC_OR_PARTITION, LOG_DIR_NOT_FOUND = 3, 57


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_replica_can_move_to_the_one_directory_and_to_no_other(tmp_path: Path, version: int) -> None:
    async with KafkaNode(tmp_path / "sub") as node:
        await node.create("t", 2)
        dirs = [
            AlterReplicaLogDirsRequestDir(f"{tmp_path / 'sub'}/", [AlterReplicaLogDirsRequestTopic("t", [0, 7])]),
            AlterReplicaLogDirsRequestDir("/elsewhere", [AlterReplicaLogDirsRequestTopic("t", [1])]),
            AlterReplicaLogDirsRequestDir("/elsewhere", [AlterReplicaLogDirsRequestTopic("nobody", [0])]),
        ]
        answer = await node.ask(KEY, AlterReplicaLogDirsRequest(dirs), version)
        told = {
            (result.topic_name, each.partition_index): each.error_code
            for result in answer.results
            for each in result.partitions
        }
        assert told == {
            ("t", 0): 0,
            ("t", 7): UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 1): LOG_DIR_NOT_FOUND,
            ("nobody", 0): UNKNOWN_TOPIC_OR_PARTITION,
        }
