"""How fast connections may be opened (KIP-612, KIP-402), for whatever accepts them.

Above the rate of the whole broker, connections are accepted late. A connection above the rate of its address, or above the number that an
address may have open, is refused.
"""

from typing import Final, NamedTuple

from penstock.core.broker_config import CONNECTION_RATE, CONNECTIONS_PER_IP
from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.quotas.names import DEFAULT, Place, QuotaKey, encoded
from penstock.core.quotas.rates import Rate
from penstock.core.quotas.store import QuotaStore
from penstock.core.quotas.trackers import Trackers
from penstock.limits import QUOTA_ENTITIES_MAX, REQUEST_THROTTLE_MS_MAX


class Admission(NamedTuple):
    """Whether a connection is admitted, and after which delay. A refused one is closed after its delay, without an answer."""

    delay_ms: int = 0
    refusal: str = ""
    """Why it is refused; empty if it is not."""


ADMITTED: Final = Admission()


class ConnectionRates:
    """The connections of a node."""

    def __init__(self, quotas: QuotaStore, configs: DynamicConfigs, addresses_max: int = QUOTA_ENTITIES_MAX) -> None:
        self._quotas = quotas
        self._configs = configs
        self._by_address: Final = Trackers(Rate, addresses_max, lambda: None)
        self._all: Rate | None = None
        self._open: Final[dict[str, int]] = {}

    def opened(self, address: str) -> None:
        """A gateway has taken a connection."""
        self._open[address] = self._open.get(address, 0) + 1

    def closed(self, address: str) -> None:
        """A connection that a gateway had taken is closed."""
        left = self._open.pop(address, 1) - 1
        if left > 0:
            self._open[address] = left

    def admit(self, address: str, now_ms: int) -> Admission:
        """Decide about a new connection."""
        open_from_it = self._open.get(address, 0)
        open_max = self._configs.number(CONNECTIONS_PER_IP)
        if open_max is not None and open_from_it >= open_max:
            return Admission(
                0, f"{address} has {open_from_it} open connections, which is the limit ({CONNECTIONS_PER_IP})"
            )
        limit = self._limit(address)
        if limit is not None:
            delay_ms = self._by_address.get(address, limit, now_ms).record_within(1, now_ms)
            if delay_ms:
                text = f"{address} opens more than {limit:g} connections per second ({QuotaKey.CONNECTIONS.value})"
                return Admission(min(delay_ms, REQUEST_THROTTLE_MS_MAX), text)
        return self._of_broker(now_ms)

    def _limit(self, address: str) -> float | None:
        found = self._quotas.value(Place(ip=encoded(address)), QuotaKey.CONNECTIONS)
        return self._quotas.value(Place(ip=DEFAULT), QuotaKey.CONNECTIONS) if found is None else found

    def _of_broker(self, now_ms: int) -> Admission:
        limit = self._configs.number(CONNECTION_RATE)
        if limit is None:
            self._all = None
            return ADMITTED
        if self._all is None:
            self._all = Rate(limit)
        self._all.set_limit(limit, now_ms)
        delay_ms = min(self._all.record(1, now_ms), REQUEST_THROTTLE_MS_MAX)
        return Admission(delay_ms) if delay_ms else ADMITTED
