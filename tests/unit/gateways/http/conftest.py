from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http_node import HttpNode


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path) as node:
        yield node
