from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.kafka_wire import WireNode


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[WireNode]:
    """A node that listens, with one topic ``t`` of two partitions."""
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        yield node
