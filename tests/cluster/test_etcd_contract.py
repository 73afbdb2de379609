"""The contract of a metadata store (``tests/unit/metadata/test_port.py``, ``test_leases.py``), held by a store on a real etcd."""

from collections.abc import AsyncIterator, Iterator
from itertools import count

import grpc.aio
import pytest
import pytest_asyncio

from penstock.metadata.etcd.endpoints import StoreMember
from penstock.metadata.etcd.store import OPERATIONS_MAX, EtcdStore
from penstock.metadata.port import Compare, Put
from penstock.wire.etcd import etcd_generated as pb
from tests.support.etcd import Etcd, running_etcd
from tests.unit.metadata import test_leases, test_port

pytestmark = pytest.mark.usefixtures("patience")
_numbers = count()

# Every test of the contract is a test here, with the fixtures of this module.
globals().update(
    {
        name: test
        for module in (test_port, test_leases)
        for name, test in vars(module).items()
        if name.startswith("test_")
    }
)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest_asyncio.fixture
async def store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    """A cluster of its own for each test."""
    made = await etcd.open(f"c{next(_numbers)}")
    yield made
    await made.close()


@pytest.fixture
def shared(store: EtcdStore) -> test_leases.Shared:
    """Its leases end when their time has come."""
    return test_leases.Shared(store, lambda _milliseconds: None)


async def test_a_transaction_of_the_most_operations_is_taken_and_a_larger_one_refused(store: EtcdStore) -> None:
    compares = [Compare(f"k{n}", create_revision=0) for n in range(OPERATIONS_MAX)]
    puts = [Put(f"k{n}", b"") for n in range(OPERATIONS_MAX + 1)]
    assert (await store.txn(compares, puts[:OPERATIONS_MAX])).succeeded
    with pytest.raises(ValueError, match="128"):
        await store.txn([], puts)


async def test_etcd_itself_refuses_two_puts_of_one_key(etcd: Etcd) -> None:
    """The reason why every store refuses it."""
    member = StoreMember(etcd.addresses[0], None)
    put = pb.RequestOp(request_put=pb.PutRequest(key=b"a", value=b"1"))
    with pytest.raises(grpc.aio.AioRpcError, match="duplicate key given in txn request"):
        await member.txn(pb.TxnRequest(success=[put, put]))
    assert not (await member.range(pb.RangeRequest(key=b"a"))).kvs
    await member.channel.close()


async def test_clusters_of_one_etcd_see_nothing_of_each_other(etcd: Etcd, store: EtcdStore) -> None:
    other = await etcd.open("c")  # A name that the others' begin with.
    heard: list[str] = []
    other.subscribe("", lambda events: heard.extend(event.key for event in events))
    await store.txn([], [Put("a", b"1")])
    await other.txn([], [Put("b", b"2")])
    assert [entry.key for entry in (await other.range("")).entries] == ["b"]
    assert await other.get("a") is None
    assert heard == ["b"]
    await other.close()
