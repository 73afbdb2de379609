from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.kafka_node import KafkaNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        yield started
