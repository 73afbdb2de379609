"""After the faults: what the cluster must converge to, and whether every record is there.

Within a bounded time every partition has a leader and all its replicas in sync, on the nodes of the agreed record and on no
others; moves are complete; a drained node has nothing that another could take over; everything that was sent is acknowledged,
and every record of a queue is acked or a dead letter.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.cluster.follower import Follower
from penstock.core.cluster.observed import is_observed_id
from penstock.core.cluster.records import is_reassigning
from penstock.core.partitions.replica import Replica
from penstock.core.topics.records import PartitionRecord
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.testing.simulation.clients import values_of
from penstock.testing.simulation.history import TopicPartition
from penstock.testing.simulation.machine import Running

if TYPE_CHECKING:
    from penstock.testing.simulation.simulation import Simulation

QUEUE: Final = TopicPartition("q", 0)
LETTERS: Final = TopicPartition("dlq.q", 0)


class Convergence:
    """Checks whether the cluster has converged, and then the contents of its logs."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world

    def unsettled(self) -> str | None:
        """What has not converged yet; None if everything has."""
        world = self._world
        for machine in world.machines:
            if machine.running is None:
                machine.start()
                return f"node {machine.number} does not serve"
        return world.operator.unrestored() or self._unfinished() or self._unworked() or self._misplaced()

    def _unfinished(self) -> str | None:
        for producer in self._world.producers:
            if not producer.is_done:
                return f"{producer.name} still has something to send to {producer.place}"
        for committer in self._world.committers:
            if not committer.is_done:
                return f"{committer.group} has not fetched its committed offset"
        return None

    def _unworked(self) -> str | None:
        queue = self._world.queue
        if queue is None:
            return None
        for running in self._nodes():
            broker = running.broker
            with suppress(PenstockError):
                if broker.queues.get(QUEUE.topic, queue.group) is not None:
                    # The status may start to follow the topic's leader, which must belong to the node's process.
                    status = running.process.context().run(broker.queues.status, QUEUE.topic, queue.group)
                    return (
                        f"the queue has records left: {status.partitions}" if status.lag or status.in_flight else None
                    )
        return "no node coordinates the queue"

    def _nodes(self) -> Iterator[Running]:
        for machine in self._world.machines:
            if machine.running is not None:
                yield machine.running

    # Partitions.

    def _use_all(self) -> None:
        """A partition with one replica is opened when it is first used."""
        for running in self._nodes():
            broker = running.broker
            for place in broker.cluster.replicas.unopened():
                topic = broker.topics.get_by_id(place.topic_id)
                if topic is not None:
                    with suppress(PenstockError):
                        running.process.context().run(broker.partition, topic.name, place.partition)

    def _misplaced(self) -> str | None:
        world = self._world
        self._use_all()
        by_place: dict[TopicPartition, dict[int, Replica]] = {}
        for machine, place, replica in world.replicas():
            if not (isinstance(replica, Follower) and replica.is_observer):
                by_place.setdefault(place, {})[machine.number] = replica
        agreed = dict(world.etcd.partitions())
        for place in world.places:
            if place not in agreed:
                return f"{place} is nowhere"
        for place, record in agreed.items():
            why = self._restless(place, record) or _unequal(place, record, by_place.pop(place, {}))
            if why is not None:
                return why
        for place, replicas in by_place.items():
            return f"{place} is on {sorted(replicas)}, and is no topic's"
        return self._undrained() or self._littered()

    def _restless(self, place: TopicPartition, record: PartitionRecord) -> str | None:
        if is_reassigning(record):
            return f"{place} is on its way: to {record.adding}, from {record.removing}"
        if sorted(record.in_sync) != sorted(record.replicas):
            return f"in sync for {place} are {record.in_sync} of {record.replicas}, led by {record.leader}"
        if record.leader not in record.replicas:
            return f"{place} is led by {record.leader}"
        factor = min(self._world.shape.replication_factor, len(self._world.machines) - len(self._world.etcd.drained()))
        if place.topic.startswith("__") and len(record.replicas) < factor:
            return f"{place} has no more replicas than {record.replicas}"
        return None

    def _undrained(self) -> str | None:
        for node in self._world.etcd.drained():
            for running in self._nodes():
                drain = running.broker.cluster.reassignments.progress(node)
                if drain.leads or drain.replicas > drain.stuck:
                    return f"node {node} is not drained: {drain}"
        return None

    def _littered(self) -> str | None:
        """A topic that was deleted, but still has files."""
        known = {record.id for _, record in self._world.etcd.topics()}
        for running in self._nodes():
            for topic_id in running.logs.topic_ids():
                if topic_id not in known and not is_observed_id(topic_id):
                    return f"{running.process} has files of topic {topic_id}, which is deleted"
        return None

    # The contents.

    def check(self) -> None:
        """Check that all replicas are equal, and contain everything that was acknowledged."""
        world = self._world
        logs: dict[TopicPartition, bytes] = {}
        observed: list[tuple[int, TopicPartition, Replica]] = []
        for machine, place, replica in world.replicas():
            if isinstance(replica, Follower) and replica.is_observer:
                observed.append((machine.number, place, replica))
                continue
            data = _records_of(replica)
            if logs.setdefault(place, data) != data:
                world.history.violate(f"node {machine.number} has other bytes of {place} than another replica")
                return
        found = {place: dict(values_of(data)) for place, data in logs.items()}
        for number, place, replica in observed:
            for offset, value in values_of(_records_of(replica)):
                if found.get(place, {}).get(offset) != value:
                    world.history.violate(
                        f"node {number} observed {value!r} at {place} offset {offset}: it is not there"
                    )
                    return
        left: dict[TopicPartition, Mapping[int, bytes]] = {place: found.get(place, {}) for place in world.places}
        if world.mortal is not None:
            left |= world.mortal.check(found)
        world.history.check(left)
        if world.queue is not None:
            world.queue.check(found.get(QUEUE, {}), found.get(LETTERS, {}))


def _unequal(place: TopicPartition, record: PartitionRecord, replicas: dict[int, Replica]) -> str | None:
    if sorted(replicas) != sorted(record.replicas):
        return f"{place} is on {sorted(replicas)}, and should be on {record.replicas}"
    ends = {(replica.log.next_offset, replica.high_watermark) for replica in replicas.values()}
    if len(ends) != 1 or any(end != high_watermark for end, high_watermark in ends):
        return f"{place} ends and is committed at {sorted(ends)}"
    return None


def _records_of(replica: Replica) -> bytes:
    log = replica.log
    if log.next_offset == log.start_offset:
        return b""
    return bytes(log.read(log.start_offset, 64 * MIB, log.next_offset).data)
