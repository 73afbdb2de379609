"""Real etcd, real nodes. Where there is no etcd these tests are skipped, and say so."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.etcd import Etcd, running_etcd
from tests.support.gateway_cluster import GatewayCluster


@pytest.fixture
def etcd_of_three(tmp_path: Path) -> Iterator[Etcd]:
    """Three members: one may be lost."""
    with running_etcd(tmp_path / "etcd", members=3) as etcd:
        yield etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One member, which is enough where nothing happens to it."""
    with running_etcd(tmp_path / "etcd") as etcd:
        yield etcd


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[GatewayCluster]:
    """Three nodes in the test's own event loop, without etcd."""
    async with GatewayCluster(tmp_path) as made:
        yield made
