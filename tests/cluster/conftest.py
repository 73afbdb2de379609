"""Real etcd, real nodes. Where there is no etcd these tests are skipped, and say so."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.dropped_sockets import pytest_configure, pytest_sessionfinish
from tests.support.etcd import SECONDS_MAX, Etcd, running_etcd
from tests.support.gateway_cluster import GatewayCluster

__all__ = ["pytest_configure", "pytest_sessionfinish"]


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


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Etcd may take its time, as on a machine that does much else: for tests in which it never fails to answer."""
    for module, name in (
        ("endpoints", "CONNECT_SECONDS"),
        ("endpoints", "READ_SECONDS"),
        ("store", "ANSWER_SECONDS"),
        ("store", "KEEP_ALIVE_SECONDS"),
        ("store", "_DELIVERY_SECONDS"),
        ("watch", "ANSWER_SECONDS"),
    ):
        monkeypatch.setattr(f"penstock.metadata.etcd.{module}.{name}", SECONDS_MAX)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[GatewayCluster]:
    """Three nodes in the test's own event loop, without etcd."""
    async with GatewayCluster(tmp_path) as made:
        yield made
