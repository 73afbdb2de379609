"""Members of librdkafka that join, leave, unsubscribe and restart at the same moment, on a broker without an initial delay.

After each round of changes the members that subscribe must share the partitions, whatever order their requests arrived in.
"""

import itertools
import os
import queue
import random
import threading
from collections.abc import Callable
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.support.waiting import eventually

PARTITIONS = 6
ROUNDS = int(os.environ.get("CHURN_ROUNDS", "8"))
POLL_SECONDS = 0.02
FINAL_ERRORS = {confluent_kafka.KafkaError._FATAL, confluent_kafka.KafkaError.FENCED_INSTANCE_ID}

Command = Callable[["Churner"], None]


class Churner:
    """A consumer in a thread of its own, which polls and does what it is told between polls."""

    def __init__(self, bootstrap: str, topic: str, group: str, instance_id: str | None) -> None:
        self.topic = topic
        self.settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            # A static member that unsubscribes before it has joined does not leave: its session has to end.
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 100,
            "enable.auto.commit": False,
        }
        if instance_id is not None:
            self.settings["group.instance.id"] = instance_id
        self.is_subscribed = False
        self.partitions: frozenset[int] = frozenset()
        self.error: BaseException | None = None
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._consumer = confluent_kafka.Consumer(self.settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def subscribe(self) -> None:
        self._consumer.subscribe([self.topic])
        self.is_subscribed = True

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()
        self.is_subscribed = False

    def restart(self) -> None:
        """Close, which makes a dynamic member leave and a static one only stop, and join with a new client."""
        self._consumer.close()
        self._consumer = confluent_kafka.Consumer(self.settings)
        self.subscribe()

    def resubscribe(self) -> None:
        self.unsubscribe()
        self.subscribe()

    def look(self) -> None:
        self.partitions = frozenset(where.partition for where in self._consumer.assignment())

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the member did not close"

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                while not self.commands.empty():
                    self.commands.get()(self)
                message = self._consumer.poll(POLL_SECONDS)
                self.look()
                if message is not None and message.error() is not None and message.error().code() in FINAL_ERRORS:
                    raise confluent_kafka.KafkaException(message.error())
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


JOINED = (Churner.unsubscribe, Churner.restart, Churner.resubscribe)
APART = (Churner.subscribe, Churner.subscribe, Churner.restart)


def shared(members: list[Churner], admin: AdminClient, group: str) -> bool:
    """Every partition is held by one of the members that subscribe, and the broker says the same."""
    for member in members:
        if member.error is not None:
            raise member.error
    inside = [member for member in members if member.is_subscribed]
    held = sorted(sorted(member.partitions) for member in inside)
    if sorted(itertools.chain.from_iterable(held)) != (list(range(PARTITIONS)) if inside else []) or [] in held:
        return False
    described = admin.describe_consumer_groups([group])[group].result(20)
    assigned = sorted(
        sorted(where.partition for where in each.assignment.topic_partitions) for each in described.members
    )
    return assigned == held and (not inside or described.state is ConsumerGroupState.STABLE)


def order(start: threading.Barrier, finished: threading.Semaphore, change: Command, member: Churner) -> None:
    """Change a member at the same moment as the others."""
    start.wait(30)
    change(member)
    member.look()
    finished.release()


@pytest.mark.parametrize("statics", [0, 1, 3])
@pytest.mark.parametrize("count", [2, 3])
def test_members_that_change_at_the_same_time_always_share_the_partitions_again(
    bootstrap, admin, new_topic, unique, count, statics
) -> None:
    topic, group, chance = new_topic(partitions=PARTITIONS), unique("group"), random.Random(10 * count + statics)
    members = [Churner(bootstrap, topic, group, f"static-{n}" if n < statics else None) for n in range(count)]
    try:
        done: list[str] = []
        for _ in range(ROUNDS):
            start, finished = threading.Barrier(count), threading.Semaphore(0)
            changes = [chance.choice(JOINED if member.is_subscribed else APART) for member in members]
            done.append(" ".join(change.__name__ for change in changes))
            for member, change in zip(members, changes, strict=True):
                member.commands.put(partial(order, start, finished, change))
            for member in members:
                assert finished.acquire(timeout=30), f"{member.error}, after {done}"
            eventually(lambda: shared(members, admin, group), what=f"the members share the partitions after {done}")
    finally:
        for member in members:
            member.close()
