"""Which quota applies to whom, what is counted together, and the bound on what is remembered."""

import contextlib
import itertools

import pytest

from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.quotas.names import Place, QuotaKey
from penstock.core.quotas.quotas import Quotas
from penstock.core.security.access import INTERNAL, Caller, Principal
from penstock.errors import PenstockError, QuotaExceeded, Reason
from penstock.limits import QUOTA_DEBT_MS_MAX, QUOTAS_MAX
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.meters import Meters
from penstock.types import Gateway, NodeId
from tests.support.worlds import ManualClock

PRODUCE, MUTATIONS = QuotaKey.PRODUCE.value, QuotaKey.MUTATIONS.value
DEFAULT = "<default>"
LEVELS = [
    Place("anna", "app"),
    Place("anna", DEFAULT),
    Place("anna"),
    Place(DEFAULT, "app"),
    Place(DEFAULT, DEFAULT),
    Place(DEFAULT),
    Place(None, "app"),
    Place(None, DEFAULT),
]
"""The most specific first, as in Kafka's documentation."""


def caller(user: str = "anna", client_id: str = "app", gateway: Gateway = Gateway.KAFKA) -> Caller:
    return Caller(Principal(f"User:{user}"), gateway, "192.0.2.1", client_id=client_id)


class Node:
    """The quotas of one node over a store."""

    def __init__(self, store: MemoryStore, entities_max: int = 100) -> None:
        self.clock = ManualClock()
        self.meters = Meters()
        self.quotas = Quotas(store, DynamicConfigs(store, NodeId(1), {}), self.clock, self.meters, entities_max)

    async def set(self, place: Place, **changes: float | None) -> None:
        await self.quotas.store.alter(place, changes)

    def limit(self, asked: Caller) -> float | None:
        rate = self.quotas.of(asked).produce
        return None if rate is None else rate.limit


async def started(store: MemoryStore | None = None, entities_max: int = 100) -> Node:
    node = Node(store or MemoryStore(), entities_max)
    await node.quotas.load()
    return node


@pytest.fixture
async def node() -> Node:
    return await started()


async def test_the_most_specific_quota_applies(node: Node) -> None:
    """Every set of levels: 255 of them."""
    for count in range(1, len(LEVELS) + 1):
        for chosen in itertools.combinations(range(len(LEVELS)), count):
            for level, place in enumerate(LEVELS):
                await node.set(place, producer_byte_rate=float(level + 1) if level in chosen else None)
            assert node.limit(caller()) == chosen[0] + 1, chosen


async def test_each_key_is_decided_by_itself(node: Node) -> None:
    await node.set(Place("anna", "app"), consumer_byte_rate=5.0)
    await node.set(Place("anna"), producer_byte_rate=7.0)
    allowance = node.quotas.of(caller())
    assert allowance.consume is not None
    assert allowance.produce is not None
    assert (allowance.consume.limit, allowance.produce.limit, allowance.request) == (5.0, 7.0, None)


async def test_the_client_ids_of_a_user_share_its_quota(node: Node) -> None:
    await node.set(Place("anna"), producer_byte_rate=100.0)
    assert node.quotas.of(caller(client_id="a")).produce is node.quotas.of(caller(client_id="b")).produce
    assert node.quotas.of(caller("bert")).produce is None


async def test_a_default_gives_each_user_an_allowance_of_its_own(node: Node) -> None:
    await node.set(Place(DEFAULT), producer_byte_rate=100.0)
    anna, bert = node.quotas.of(caller()).produce, node.quotas.of(caller("bert")).produce
    assert anna is not None
    assert anna is not bert
    assert anna is node.quotas.of(caller(client_id="other")).produce


async def test_a_quota_of_a_client_id_is_shared_by_its_users(node: Node) -> None:
    await node.set(Place(None, "app"), producer_byte_rate=100.0)
    assert node.quotas.of(caller()).produce is node.quotas.of(caller("bert")).produce


async def test_a_user_counts_the_same_through_every_api(node: Node) -> None:
    await node.set(Place("anna"), producer_byte_rate=100.0)
    rates = {
        id(node.quotas.of(caller(gateway=gateway)).produce) for gateway in Gateway if gateway is not Gateway.INTERNAL
    }
    assert len(rates) == 1


async def test_the_broker_itself_has_no_limits(node: Node) -> None:
    await node.set(Place(DEFAULT), producer_byte_rate=1.0, controller_mutation_rate=1.0)
    node.quotas.produced(INTERNAL, 10**9)
    node.quotas.produced(INTERNAL, 10**9)
    assert node.quotas.delay_ms(INTERNAL) == 0


async def test_a_change_applies_at_once_to_what_was_used_and_on_every_node() -> None:
    store = MemoryStore()
    one, other = await started(store), await started(store)
    assert not other.quotas.is_on
    await one.set(Place("anna"), producer_byte_rate=1000.0)
    assert other.quotas.is_on
    other.quotas.produced(caller(), 5000)
    assert other.quotas.delay_ms(caller()) == 0
    await one.set(Place("anna"), producer_byte_rate=400.0)
    assert other.quotas.delay_ms(caller()) == 2500
    await one.set(Place("anna"), producer_byte_rate=None)
    assert other.quotas.delay_ms(caller()) == 0
    assert not other.quotas.is_on
    assert (await store.range("quotas/")).entries == ()


async def test_quotas_are_there_after_a_restart_and_an_unknown_field_does_no_harm() -> None:
    store = MemoryStore()
    await (await started(store)).set(Place("anna", DEFAULT), producer_byte_rate=9.0)
    await store.txn([], [Put("quotas/users/bert", b'{"quotas": {"producer_byte_rate": 3}, "later": 1}')])
    node = await started(store)
    assert node.limit(caller()) == 9.0
    assert node.limit(caller("bert")) == 3.0


async def test_a_quota_for_connections_alone_costs_requests_nothing(node: Node) -> None:
    await node.set(Place(ip=DEFAULT), connection_creation_rate=1.0)
    assert not node.quotas.is_on


async def test_only_checking_changes_nothing(node: Node) -> None:
    await node.quotas.store.alter(Place("anna"), {PRODUCE: 5.0}, validate_only=True)
    assert list(node.quotas.store) == []
    with pytest.raises(PenstockError):
        await node.quotas.store.alter(Place("anna"), {PRODUCE: 0.0}, validate_only=True)


async def test_all_changes_of_an_entity_are_made_or_none(node: Node) -> None:
    with pytest.raises(PenstockError):
        await node.quotas.store.alter(Place("anna"), {PRODUCE: 5.0, "unknown": 1.0})
    assert list(node.quotas.store) == []


async def test_the_number_of_entities_with_quotas_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUOTAS_MAX >= 1000
    monkeypatch.setattr("penstock.core.quotas.store.QUOTAS_MAX", 1)
    await node.set(Place("anna"), producer_byte_rate=5.0)
    with pytest.raises(PenstockError) as refusal:
        await node.set(Place("bert"), producer_byte_rate=5.0)
    assert refusal.value.reason is Reason.POLICY_VIOLATION
    await node.set(Place("anna"), producer_byte_rate=6.0)


# Publishing and reading without a throttle time.


async def test_a_client_far_over_its_quota_is_refused_until_it_has_waited(node: Node) -> None:
    await node.set(Place("anna"), producer_byte_rate=100.0)
    node.quotas.produced(caller(), 100 * 60)
    assert node.quotas.delay_ms(caller()) == QUOTA_DEBT_MS_MAX
    with pytest.raises(QuotaExceeded) as refusal:
        node.quotas.produced(caller(), 1)
    assert refusal.value.retry_after_ms == 20_000
    assert node.meters.quota_refused.get((PRODUCE,)) == 1
    node.quotas.check_consume(caller())
    node.clock.advance(20_000)
    node.quotas.produced(caller(), 1)


async def test_a_reader_is_refused_by_its_own_quota(node: Node) -> None:
    await node.set(Place("anna"), consumer_byte_rate=100.0)
    node.quotas.consumed(caller(), 100 * 60)
    node.quotas.produced(caller(), 1)
    with pytest.raises(QuotaExceeded):
        node.quotas.check_consume(caller())
    with pytest.raises(QuotaExceeded):
        node.quotas.check(caller())


async def test_throttled_time_is_counted_by_user_and_client_id_within_bounds(node: Node) -> None:
    await node.set(Place("anna"), producer_byte_rate=100.0)
    node.quotas.produced(caller(), 1500)
    for number in range(200):
        assert node.quotas.delay_ms(caller(client_id=f"c{number}")) == 5000
    counts = dict(node.meters.throttled_ms.items())
    assert counts[PRODUCE, "anna", "c0"] == 5000
    assert len(counts) < 30
    assert sum(counts.values()) == 200 * 5000


# Changes of partitions.


async def test_changes_of_partitions_are_refused_while_some_are_owed(node: Node) -> None:
    await node.set(Place("anna"), controller_mutation_rate=1.0)
    with node.quotas.mutating(caller(), 20):
        pass
    assert node.quotas.mutation_delay_ms(caller()) == 9000
    with pytest.raises(QuotaExceeded) as refusal, node.quotas.mutating(caller(), 1):
        pytest.fail("it is refused before anything is done")
    assert refusal.value.retry_after_ms == 9000
    with node.quotas.mutating(caller(), 1, is_refusable=False):
        pass
    assert node.quotas.mutation_delay_ms(caller()) == 10_000
    node.clock.advance(10_000)
    with node.quotas.mutating(caller(), 1):
        pass


async def test_a_change_that_fails_costs_nothing(node: Node) -> None:
    await node.set(Place("anna"), controller_mutation_rate=1.0)
    for _ in range(10):
        with pytest.raises(PenstockError), node.quotas.mutating(caller(), 10):
            raise PenstockError(Reason.TOPIC_ALREADY_EXISTS)
    assert node.quotas.mutation_delay_ms(caller()) == 0


# Bounds.


async def test_entities_that_use_nothing_are_forgotten_for_new_ones() -> None:
    node = await started(entities_max=3)
    await node.set(Place(None, DEFAULT), producer_byte_rate=10.0)
    for name in "abc":
        node.quotas.produced(caller(client_id=name), 150)
    node.clock.advance(20_000)
    node.quotas.produced(caller(client_id="a"), 150)
    before = node.quotas.delay_ms(caller(client_id="a"))
    assert before > 0
    node.quotas.produced(caller(client_id="d"), 1)
    assert node.quotas.delay_ms(caller(client_id="d")) == 0
    assert node.quotas.delay_ms(caller(client_id="a")) == before


async def test_too_many_client_ids_share_one_allowance() -> None:
    node = await started(entities_max=3)
    await node.set(Place(None, DEFAULT), producer_byte_rate=10.0)
    for number in range(50):
        with contextlib.suppress(QuotaExceeded):
            node.quotas.produced(caller(client_id=f"c{number}"), 10)
    assert node.quotas.delay_ms(caller(client_id="c0")) == 0
    assert node.quotas.delay_ms(caller(client_id="new")) == QUOTA_DEBT_MS_MAX
    with pytest.raises(QuotaExceeded):
        node.quotas.produced(caller(client_id="newer"), 1)


async def test_a_change_keeps_what_everyone_has_used() -> None:
    node = await started()
    await node.set(Place("anna"), producer_byte_rate=10.0)
    node.quotas.produced(caller(), 200)
    delay_ms = node.quotas.delay_ms(caller())
    await node.set(Place("bert"), producer_byte_rate=10.0)
    assert node.quotas.delay_ms(caller()) == delay_ms > 0
