"""The shop of the demo: customers that order, workers that bill the orders, and typical failures.

Orders are published to topic ``orders``, which group ``billing`` consumes as a queue. A paid order becomes a record of topic ``payments``. If the card
service does not answer, the order is retried; if the card is declined, all attempts fail, and the order becomes a dead letter.
"""

import json
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final

from penstock.client import Cluster, LeasedRecord, Producer, QueueClient, RequestRefused

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
SALES: Final = "sales"
BILLING: Final = "billing"
PARTITIONS: Final = 3
ATTEMPTS_MAX: Final = 3

_PRICES: Final = {"apples": 2.4, "bread": 3.2, "cheese": 7.5, "dates": 4.9, "eggs": 3.9}
_WEIGHTS: Final = (5, 8, 3, 2, 6)
_CITIES: Final = ("Bergen", "Lima", "Osaka", "Turin")
_CARDS: Final = ("good", "slow", "declined", "expired")
_CARD_WEIGHTS: Final = (86, 9, 3, 2)
_LEASE_MS: Final = 5_000
_WAIT_MS: Final = 300
_LOOK_SECONDS: Final = 0.2


@dataclass
class Counts:
    """Counters, shared by the workers."""

    ordered: int = 0
    paid: int = 0
    attempts_failed: int = 0
    abandoned: int = 0
    failures: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def order(number: int, chance: random.Random) -> dict[str, object]:
    """An order with a card, which may be declined."""
    product = chance.choices(tuple(_PRICES), _WEIGHTS)[0]
    quantity = chance.randint(1, 6)
    return {
        "id": f"order-{number:05}",
        "product": product,
        "city": chance.choice(_CITIES),
        "amount": round(_PRICES[product] * quantity, 2),
        "card": chance.choices(_CARDS, _CARD_WEIGHTS)[0],
    }


def sell(bootstrap: str, count: int, seconds: float, counts: Counts, stop: threading.Event) -> None:
    """Send this many orders over this many seconds. The first few cover every kind of card."""
    chance = random.Random(7)
    headers = [
        ("penstock.max_attempts", str(ATTEMPTS_MAX).encode()),
        ("penstock.backoff_ms", b"300"),
        ("penstock.max_backoff_ms", b"1000"),
    ]
    with Cluster(bootstrap) as cluster, Producer(cluster) as producer:
        for number in range(count):
            wish = order(number, chance)
            if number < len(_CARDS):
                wish["card"] = _CARDS[number]
            producer.send(ORDERS, json.dumps(wish).encode(), key=str(wish["city"]).encode(), headers=headers)
            producer.flush()
            counts.ordered += 1
            if stop.wait(seconds / count):
                return


class Worker(threading.Thread):
    """Bill orders until stopped. A worker that ``walks_away`` abandons its third order and disappears."""

    def __init__(
        self, name: str, http: str, counts: Counts, stop: threading.Event, *, walks_away: bool = False
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._http = http
        self._counts = counts
        self._stop = stop
        self._orders_left = 3 if walks_away else None

    def run(self) -> None:
        """Lease orders, bill them and report the results."""
        try:
            with QueueClient(self._http, owner=self.name) as client:
                while not self._stop.is_set():
                    for record in client.lease(ORDERS, BILLING, max_records=4, lease_ms=_LEASE_MS, wait_ms=_WAIT_MS):
                        if self._orders_left is not None:
                            self._orders_left -= 1
                            if not self._orders_left:
                                self._counts.abandoned += 1
                                return
                        self._bill(client, record)
        except BaseException as error:  # noqa: BLE001 - told by whoever looks after the workers
            self._counts.failures.append(error)

    def _bill(self, client: QueueClient, record: LeasedRecord) -> None:
        wish = json.loads(record.value or b"{}")
        trouble = _trouble(wish["card"], record.attempts)
        if trouble is not None:
            with self._counts.lock:
                self._counts.attempts_failed += 1
            with _lease_may_be_over():
                client.nack(record, trouble)
            return
        paid = {name: wish[name] for name in ("id", "product", "city", "amount")}
        # Billed twice by two workers, it is paid once: the broker knows the key.
        produced = client.produce(
            PAYMENTS,
            json.dumps({**paid, "paid_at": datetime.now(UTC).isoformat()}),
            key=wish["city"],
            idempotency_key=wish["id"],
        )
        with _lease_may_be_over():
            client.ack(record)
        if not produced.duplicate:
            with self._counts.lock:
                self._counts.paid += 1


def _lease_may_be_over() -> AbstractContextManager[None]:
    """Then another worker has the order."""
    return suppress(RequestRefused)


def _trouble(card: str, attempts: int) -> str | None:
    """The failure of this attempt, if any."""
    if card == "slow" and attempts == 1:
        return "the card service did not answer"
    return {"declined": "card declined", "expired": "card expired"}.get(card)


def close_the_till(http: str, after: timedelta) -> None:
    """A last record that is later than all others, so that every window is final."""
    last = {"id": "till", "product": "-", "city": "-", "amount": 0.0}
    with QueueClient(http) as client:
        client.produce(PAYMENTS, json.dumps({**last, "paid_at": (datetime.now(UTC) + after).isoformat()}))


def watch(check: Callable[[], bool], seconds: float, stop: threading.Event, what: str) -> None:
    """Wait until a condition holds; raise TimeoutError if it does not in time."""
    deadline = monotonic() + seconds
    while not check():
        if monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        if stop.wait(_LOOK_SECONDS):
            raise InterruptedError(what)
