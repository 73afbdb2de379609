"""Producers and workers of a queue over HTTP that go on while the broker dies, and remember what they were promised."""

import contextlib
import http.client
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.testing.process import BrokerProcess

TOPIC = "jobs"
GROUP = "crew"
LEASE_MS = 2_000
POISON_EVERY = 7
"""One record in so many is one that every worker fails; it has two attempts."""

Place = tuple[int, int]


class Unanswered(Exception):
    """The broker died before it answered, or is not there."""


class Client:
    """One connection, made anew when it is lost."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, **body: Any) -> tuple[int, Any]:
        try:
            if self._connection is None:
                host, _, port = self._broker.addresses["http"].rpartition(":")
                self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
            method = "POST" if body else "GET"
            text = json.dumps(body) if body else None
            self._connection.request(method, path, text, {"Content-Type": "application/json"} if body else {})
            answer = self._connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unanswered from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The attempt that a record came with, and moments before it was requested and after it arrived."""

    attempts: int
    asked: int
    noted: int


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """When the power was lost, and up to which moment the deliveries before it were synced for certain."""

    moment: int
    synced: int


class Ledger:
    """What everybody was told, and what must therefore hold. ``wrong`` collects what did not."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.produced: dict[Place, str] = {}
        self._values: dict[Place, str] = {}
        """Of all records that were produced or delivered: a place has one for good."""
        self.acked: dict[Place, int] = {}
        """And the moment of each."""
        self.perhaps_acked: set[Place] = set()
        self.deliveries: dict[Place, list[Delivered]] = {}
        self.wrong: list[str] = []
        self._moment = 0
        self._synced = 0
        self._losses: list[PowerLoss] = []

    def moment(self) -> int:
        """What is noted from now on is later than this. A client that waits for its turn notes late what came early."""
        with self._changed:
            self._moment += 1
            return self._moment

    def note_produced(self, place: Place, value: str) -> None:
        with self._changed:
            self.produced[place] = value
            self._note_value(place, value)
            self._changed.notify_all()

    def _note_value(self, place: Place, value: str) -> None:
        if (known := self._values.setdefault(place, value)) != value:
            self.wrong.append(f"{place} was {known!r} and is {value!r}")

    def note_delivery(self, place: Place, value: str, attempts: int, asked: int) -> None:
        """``asked`` is a moment before the record was requested."""
        with self._changed:
            if self.acked.get(place, asked) < asked:
                self.wrong.append(f"{place} was acked and came again")
            self._note_value(place, value)
            before = self.deliveries.setdefault(place, [])
            for other in before:
                repeated = other.attempts == attempts or (other.attempts > attempts and other.noted < asked)
                if repeated and not self._may_be_forgotten(other):
                    self.wrong.append(f"{place} came with attempt {attempts} after {before}, lost power {self._losses}")
            before.append(Delivered(attempts, asked, self._moment))

    def _may_be_forgotten(self, delivery: Delivered) -> bool:
        return any(delivery.asked < loss.moment and loss.synced <= delivery.noted for loss in self._losses)

    def note_nacked(self, asked: int) -> None:
        """A nack is answered when it is synced, and with it every delivery before it: they are in one log."""
        with self._changed:
            self._synced = max(self._synced, asked)

    @contextlib.contextmanager
    def losing_power(self) -> Iterator[None]:
        """Around a cut: a broker that loses power within the block may forget deliveries that it had not synced."""
        with self._changed:
            synced = self._synced
            self._losses.append(PowerLoss(sys.maxsize, synced))
        yield
        with self._changed:
            self._moment += 1
            self._losses[-1] = PowerLoss(self._moment, synced)

    def note_acking(self, places: list[Place]) -> None:
        with self._changed:
            self.perhaps_acked.update(places)

    def note_acked(self, places: list[Place]) -> None:
        with self._changed:
            self.acked.update(dict.fromkeys(places, self._moment))
            self._changed.notify_all()

    def wait_for_acks(self, count: int, seconds: float = 60.0) -> None:
        """Return once so many more records were acked."""
        with self._changed:
            goal = len(self.acked) + count
            arrived = self._changed.wait_for(lambda: len(self.acked) >= goal or bool(self.wrong), seconds)
        assert arrived, f"only {len(self.acked)} of {goal} acks in {seconds:.0f} s"


class Busy:
    """A thread that does the same thing again and again, whether or not the broker is there."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger) -> None:
        self.client = Client(broker)
        self.ledger = ledger
        self._stopping = threading.Event()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a client did not come to an end"
        self.client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.work()
            except Unanswered:
                self._pause.wait(0.02)

    def work(self) -> None:
        raise AssertionError("each has its own")


class Producer(Busy):
    """Numbered records, some of them poison."""

    number = 0

    def work(self) -> None:
        self.number += 1
        poison = self.number % POISON_EVERY == 0
        value = f"{'poison' if poison else 'good'} {self.number}"
        envelope = {"retry_policy": {"max_attempts": 2}} if poison else {}
        status, body = self.client.ask("/v1/produce", topic=TOPIC, value=value, envelope=envelope)
        if status == 200:
            self.ledger.note_produced((body["partition"], body["offset"]), value)


class Worker(Busy):
    """Leases some, acks the good, fails the poison."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger, name: str) -> None:
        self.name = name
        super().__init__(broker, ledger)

    def work(self) -> None:
        whose = {"topic": TOPIC, "group": GROUP, "owner": self.name}
        asked = self.ledger.moment()
        status, body = self.client.ask("/v1/lease", **whose, max_records=20, lease_ms=LEASE_MS, wait_ms=100)
        if status != 200:
            self._pause.wait(0.02)
            return
        good: dict[int, list[int]] = {}
        poison: list[Place] = []
        for record in body["records"]:
            place = (record["partition"], record["offset"])
            self.ledger.note_delivery(place, record["value"], record["attempts"], asked)
            if record["value"].startswith("poison"):
                poison.append(place)
            else:
                good.setdefault(place[0], []).append(place[1])
        for partition, offsets in good.items():
            places = [(partition, offset) for offset in offsets]
            self.ledger.note_acking(places)
            status, _ = self.client.ask("/v1/ack", **whose, partition=partition, offsets=offsets)
            if status == 204:
                self.ledger.note_acked(places)
        for partition, offset in poison:
            asked = self.ledger.moment()
            status, _ = self.client.ask("/v1/nack", **whose, partition=partition, offset=offset, reason="poison")
            if status == 204:
                self.ledger.note_nacked(asked)


def lag(client: Client) -> int | None:
    """What is left to do; None while nobody answers."""
    try:
        status, body = client.ask(f"/v1/queues/{TOPIC}/{GROUP}")
    except Unanswered:
        return None
    return body["lag"] if status == 200 else None


def dead_letters(client: Client, partitions: int) -> Counter[Place]:
    """Where the dead letters came from, and how often."""
    found: Counter[Place] = Counter()
    for partition in range(partitions):
        offset = 0
        while True:
            path = f"/topics/dlq.{TOPIC}/partitions/{partition}/messages?offset={offset}&max_records=500"
            status, body = client.ask(path)
            assert status in (200, 404), (status, body)
            if status == 404 or not body["messages"]:
                break
            for message in body["messages"]:
                headers = message["headers"]
                found[int(headers["original_partition"]), int(headers["original_offset"])] += 1
                offset = message["offset"] + 1
    return found


def check_queue(ledger: Ledger, letters: Counter[Place]) -> None:
    """With every job finished: each good record was acked, each poison record is a dead letter once."""
    assert ledger.wrong == []
    poison = {place for place, value in ledger.produced.items() if value.startswith("poison")}
    assert poison
    assert not {place: count for place, count in letters.items() if count > 1}, "dead letters are there twice"
    assert not poison - set(letters), "dead letters are lost"
    assert not set(letters) & ledger.perhaps_acked, "a record that was acked died"
    assert not (set(ledger.produced) - poison) - ledger.perhaps_acked, "records were never delivered"
