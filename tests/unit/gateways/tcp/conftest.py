from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.unit.gateways.tcp.pipe import TcpNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[TcpNode]:
    """A node with one topic ``t`` of two partitions."""
    async with TcpNode(tmp_path) as node:
        yield node
