"""How fast connections may be opened."""

from penstock.core.dynamic_configs import ALL_BROKERS, DynamicConfigs
from penstock.core.quotas.connections import ADMITTED, ConnectionRates
from penstock.core.quotas.names import Place
from penstock.core.quotas.store import QuotaStore
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.metadata.memory import MemoryStore
from penstock.types import NodeId

HERE, THERE = "192.0.2.1", "2001:db8::7"


class World:
    def __init__(self, addresses_max: int = 100) -> None:
        store = MemoryStore()
        self.quotas = QuotaStore(store, lambda: None)
        self.configs = DynamicConfigs(store, NodeId(1), {})
        self.rates = ConnectionRates(self.quotas, self.configs, addresses_max)

    async def start(self) -> "World":
        await self.quotas.load()
        await self.configs.load()
        return self

    async def config(self, name: str, value: str | None) -> None:
        kind = ChangeKind.DELETE if value is None else ChangeKind.SET
        await self.configs.alter(ALL_BROKERS, [ConfigChange(name, kind, value)])


async def test_without_limits_everything_is_admitted() -> None:
    world = await World().start()
    assert all(world.rates.admit(HERE, 0) is ADMITTED for _ in range(1000))


async def test_an_address_over_its_rate_is_refused_and_others_are_not() -> None:
    world = await World().start()
    await world.quotas.alter(Place(ip=HERE), {"connection_creation_rate": 2.0})
    assert [world.rates.admit(HERE, 0).refusal for _ in range(20)] == [""] * 20
    refused = world.rates.admit(HERE, 0)
    assert HERE in refused.refusal
    assert 0 < refused.delay_ms <= 1000
    assert world.rates.admit(THERE, 0) is ADMITTED
    # A refused connection does not count.
    assert world.rates.admit(HERE, 11_000) is ADMITTED


async def test_an_address_without_a_quota_of_its_own_has_the_default() -> None:
    world = await World().start()
    await world.quotas.alter(Place(ip="<default>"), {"connection_creation_rate": 1.0})
    await world.quotas.alter(Place(ip="2001%3Adb8%3A%3A7"), {"connection_creation_rate": 1000.0})
    for _ in range(10):
        assert not world.rates.admit(HERE, 0).refusal
    assert world.rates.admit(HERE, 0).refusal
    assert not any(world.rates.admit(THERE, 0).refusal for _ in range(100))


async def test_connections_above_the_rate_of_the_broker_are_accepted_late() -> None:
    world = await World().start()
    await world.config("max.connection.creation.rate", "10")
    assert all(world.rates.admit(HERE, 0) is ADMITTED for _ in range(100))
    late = world.rates.admit(THERE, 0)
    assert (late.delay_ms, late.refusal) == (100, "")
    for _ in range(1000):
        assert world.rates.admit(THERE, 0).delay_ms <= 1000
    await world.config("max.connection.creation.rate", None)
    assert world.rates.admit(THERE, 0) is ADMITTED


async def test_an_address_may_have_so_many_connections() -> None:
    world = await World().start()
    await world.config("max.connections.per.ip", "3")
    for _ in range(3):
        assert world.rates.admit(HERE, 0) is ADMITTED
        world.rates.opened(HERE)
    assert "3 open connections" in world.rates.admit(HERE, 0).refusal
    assert world.rates.admit(THERE, 0) is ADMITTED
    world.rates.closed(HERE)
    assert world.rates.admit(HERE, 0) is ADMITTED


async def test_addresses_without_connections_are_forgotten() -> None:
    world = await World().start()
    for _ in range(2):
        world.rates.opened(HERE)
        world.rates.closed(HERE)
    world.rates.closed(THERE)
    assert world.rates._open == {}


async def test_the_addresses_that_are_measured_are_bounded() -> None:
    world = await World(addresses_max=5).start()
    await world.quotas.alter(Place(ip="<default>"), {"connection_creation_rate": 1.0})
    refused = [bool(world.rates.admit(f"198.51.100.{number}", 0).refusal) for number in range(50)]
    assert refused == [False] * 15 + [True] * 35
