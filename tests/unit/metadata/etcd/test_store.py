"""What the store says of the etcd that it finds, and what it makes of answers that do not come."""

import logging
from collections.abc import AsyncIterator

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd import endpoints
from penstock.metadata.etcd.store import EtcdStore
from penstock.wire.etcd import etcd_generated as pb
from tests.support.scripted_etcd import ScriptedEtcd


@pytest.fixture
async def etcd() -> AsyncIterator[ScriptedEtcd]:
    async with ScriptedEtcd() as etcd:
        yield etcd


@pytest.mark.parametrize(
    ("version", "is_warned"), [("3.4.23", False), ("3.5.1", True), ("3.5.33", False), ("3.6.1", False)]
)
async def test_a_version_that_loses_data_is_warned_of(
    etcd: ScriptedEtcd, caplog: pytest.LogCaptureFixture, version: str, is_warned: bool
) -> None:
    etcd.version = version
    with caplog.at_level(logging.WARNING, "penstock.metadata"):
        store = await EtcdStore.open("c", [etcd.address])
        await store.close()
    assert (f"etcd {version} is known to lose data" in caplog.text) is is_warned


async def test_a_keep_alive_that_ends_without_an_answer_says_nothing_of_the_lease(
    etcd: ScriptedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "READ_SECONDS", 0.1)
    store = await EtcdStore.open("c", [etcd.address])

    async def nothing() -> None:
        return None

    async def gone() -> pb.LeaseKeepAliveResponse:
        return pb.LeaseKeepAliveResponse(ID=7, TTL=0)

    etcd.keep_alive = nothing
    with pytest.raises(PenstockError) as caught:
        await store.keep_alive(7)
    assert caught.value.reason is Reason.METADATA_UNAVAILABLE
    etcd.keep_alive = gone
    assert await store.keep_alive(7) == 0
    await store.close()
