"""What clients have used, and how long each must wait.

An entity is measured once per node, whatever its connections and APIs. Which quota applies is decided for each key by itself, the most specific
first: user and client id, user and any client id, user, any user and client id, any user and any client id, any user, client id, any client
id. "Any" gives each user or client id an allowance of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.quotas.connections import ConnectionRates
from penstock.core.quotas.names import DEFAULT, Place, QuotaKey, encoded
from penstock.core.quotas.rates import Rate, TokenBucket
from penstock.core.quotas.store import QuotaStore
from penstock.core.quotas.trackers import Trackers
from penstock.core.security.access import Caller
from penstock.errors import QuotaExceeded
from penstock.limits import QUOTA_DEBT_MS_MAX, QUOTA_ENTITIES_MAX, REQUEST_THROTTLE_MS_MAX
from penstock.metadata.port import MetadataStore
from penstock.meters import Meters
from penstock.operations.access import USER
from penstock.ports import Clock
from penstock.types import Gateway

Entity = tuple[str | None, str | None]
"""User and client id; None for a part that the quota does not have."""


class Allowance:
    """What limits one client; None: nothing does. It is valid for one version of the quotas."""

    __slots__ = ("client_id", "consume", "mutations", "produce", "request", "user", "version")

    def __init__(self, version: int, user: str, client_id: str) -> None:
        self.version = version
        self.user = user
        self.client_id = client_id
        self.produce: Rate | None = None
        self.consume: Rate | None = None
        self.request: Rate | None = None
        self.mutations: TokenBucket | None = None


class Quotas:
    """The quotas of a node."""

    def __init__(
        self,
        store: MetadataStore,
        configs: DynamicConfigs,
        clock: Clock,
        meters: Meters,
        entities_max: int = QUOTA_ENTITIES_MAX,
    ) -> None:
        self._clock = clock
        self._meters = meters
        self._entities_max = entities_max
        self.is_on = False
        """Whether any user or client id has a quota. Hot paths ask nothing else while there is none."""
        self.version = 0
        """Changes when an allowance may be outdated."""
        self.store: Final = QuotaStore(store, self._changed)
        self.connections: Final = ConnectionRates(self.store, configs)
        self._rates: Final = Trackers(Rate, entities_max, self._outdate)
        self._buckets: Final = Trackers(TokenBucket, entities_max, self._outdate)
        self._allowances: dict[tuple[str, str], Allowance] = {}

    async def load(self) -> None:
        """Read the quotas, and follow their changes."""
        await self.store.load()
        self._changed()

    def of(self, caller: Caller) -> Allowance:
        """What limits a caller. The broker itself has no limits."""
        key = (caller.principal, caller.client_id)
        found = self._allowances.get(key)
        if found is None or found.version != self.version:
            found = self._resolve(caller)
            if len(self._allowances) >= self._entities_max:
                self._allowances.clear()
            self._allowances[key] = found
        return found

    # For the APIs that have no field for a throttle time: they slow their clients down by the delay, and refuse above a bound.

    def produced(self, caller: Caller, size_bytes: int) -> None:
        """The caller is about to publish. QuotaExceeded if it must wait first, because it is far over its quota."""
        rate = self.of(caller).produce
        if rate is not None:
            now_ms = self._clock.monotonic_ms()
            self._check_debt(QuotaKey.PRODUCE, rate.delay_ms(now_ms))
            rate.record(size_bytes, now_ms)

    def check_consume(self, caller: Caller) -> None:
        """QuotaExceeded if the caller may not read yet, because it is far over its quota."""
        rate = self.of(caller).consume
        if rate is not None:
            self._check_debt(QuotaKey.CONSUME, rate.delay_ms(self._clock.monotonic_ms()))

    def consumed(self, caller: Caller, size_bytes: int) -> None:
        """The caller was given records."""
        rate = self.of(caller).consume
        if rate is not None:
            rate.record(size_bytes, self._clock.monotonic_ms())

    def check(self, caller: Caller) -> None:
        """QuotaExceeded if the caller is over a quota at all: for calls that cannot be delayed, but can be repeated."""
        key, delay_ms = self._longest(self.of(caller))
        if delay_ms:
            self._meters.quota_refused.add((key.value,))
            raise QuotaExceeded(key.value, delay_ms)

    def delay_ms(self, caller: Caller) -> int:
        """How long the gateway makes the caller wait before its next request, which is counted."""
        allowance = self.of(caller)
        key, delay_ms = self._longest(allowance)
        delay_ms = min(delay_ms, QUOTA_DEBT_MS_MAX)
        if delay_ms:
            self.count(allowance, key, delay_ms)
        return delay_ms

    def _longest(self, allowance: Allowance) -> tuple[QuotaKey, int]:
        """The longest of the delays of all quotas."""
        now_ms = self._clock.monotonic_ms()
        delays = (
            (QuotaKey.PRODUCE, _delay(allowance.produce, now_ms)),
            (QuotaKey.CONSUME, _delay(allowance.consume, now_ms)),
            (QuotaKey.REQUEST, min(_delay(allowance.request, now_ms), REQUEST_THROTTLE_MS_MAX)),
        )
        return max(delays, key=lambda each: each[1])

    def _check_debt(self, key: QuotaKey, delay_ms: int) -> None:
        if delay_ms > QUOTA_DEBT_MS_MAX:
            self._meters.quota_refused.add((key.value,))
            raise QuotaExceeded(key.value, delay_ms - QUOTA_DEBT_MS_MAX)

    # Changes of partitions.

    @contextmanager
    def mutating(self, caller: Caller, partitions: int, *, is_refusable: bool = True) -> Iterator[None]:
        """Create or delete partitions, which count unless that fails. QuotaExceeded if the caller owes for earlier ones and is refusable."""
        bucket = self.of(caller).mutations if partitions else None
        if bucket is None:
            yield
            return
        now_ms = self._clock.monotonic_ms()
        delay_ms = bucket.delay_ms(now_ms)
        if delay_ms and is_refusable:
            self._meters.quota_refused.add((QuotaKey.MUTATIONS.value,))
            raise QuotaExceeded(QuotaKey.MUTATIONS.value, delay_ms)
        # Now, because other changes may begin before this one has ended.
        bucket.record(partitions, now_ms)
        try:
            yield
        except BaseException:
            bucket.record(-partitions, now_ms)
            raise

    def mutation_delay_ms(self, caller: Caller) -> int:
        """How long the caller owes for changes of partitions."""
        return _delay(self.of(caller).mutations, self._clock.monotonic_ms())

    # Entities.

    def count(self, allowance: Allowance, key: QuotaKey, delay_ms: int) -> None:
        """A client is slowed down."""
        self._meters.throttled_ms.add((key.value, allowance.user, allowance.client_id), delay_ms)

    def _outdate(self) -> None:
        self.version += 1
        self._allowances.clear()

    def _changed(self) -> None:
        self._outdate()
        self.is_on = self.store.has_any(QuotaKey.PRODUCE, QuotaKey.CONSUME, QuotaKey.REQUEST, QuotaKey.MUTATIONS)

    def _resolve(self, caller: Caller) -> Allowance:
        user = caller.principal.removeprefix(USER)
        allowance = Allowance(self.version, user, caller.client_id)
        if caller.gateway is Gateway.INTERNAL:
            return allowance
        now_ms = self._clock.monotonic_ms()
        for key in (QuotaKey.PRODUCE, QuotaKey.CONSUME, QuotaKey.REQUEST, QuotaKey.MUTATIONS):
            found = self._limit(key, encoded(user), encoded(caller.client_id))
            if found is None:
                continue
            limit, entity = found
            if key is QuotaKey.MUTATIONS:
                allowance.mutations = self._buckets.get(entity, limit, now_ms)
                continue
            rate = self._rates.get((key, entity), limit, now_ms)
            if key is QuotaKey.PRODUCE:
                allowance.produce = rate
            elif key is QuotaKey.CONSUME:
                allowance.consume = rate
            else:
                allowance.request = rate
        # Making room may have changed the version.
        allowance.version = self.version
        return allowance

    def _limit(self, key: QuotaKey, user: str, client: str) -> tuple[float, Entity] | None:
        """The quota that applies, and the entity that has it."""
        for place in (
            Place(user, client),
            Place(user, DEFAULT),
            Place(user),
            Place(DEFAULT, client),
            Place(DEFAULT, DEFAULT),
            Place(DEFAULT),
            Place(None, client),
            Place(None, DEFAULT),
        ):
            limit = self.store.value(place, key)
            if limit is not None:
                return limit, (None if place.user is None else user, None if place.client is None else client)
        return None


def _delay(tracker: Rate | TokenBucket | None, now_ms: int) -> int:
    return 0 if tracker is None else tracker.delay_ms(now_ms)
