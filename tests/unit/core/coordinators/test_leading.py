"""Which groups, keys and sinks a node speaks for: one node whose records, and whose followers, are what the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.broker import INTERNAL_CONFIGS
from penstock.core.partitions.partition import Partition
from penstock.core.publish import NewRecord
from penstock.core.topics.names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import (
    CommitOffsets,
    JoinClassicGroup,
    JoinResult,
    LeavingMember,
    MemberProtocol,
    OffsetToCommit,
    SyncClassicGroup,
    SyncResult,
)
from penstock.operations.sinks import CommitSink, OpenedSink, SinkPart
from penstock.types import Acks, GroupId, MemberId, PartitionKey, TopicName
from tests.support.cluster_nodes import until
from tests.support.kafka_cluster import NODE, OTHER, THIRD, ClusterNode

GROUP = GroupId("g")
TOPIC = TopicName("t")
KEY = PartitionKey(TOPIC, 0)
INTERNAL = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC)


class Node(ClusterNode):
    """Has the internal topics, of one partition each, led by whom the test says."""

    async def made(self, leader: int = NODE, partitions: int = 1) -> None:
        await self.place(TOPIC, (OTHER, NODE, THIRD))
        replicas = [leader, *(node for node in (NODE, OTHER, THIRD) if node != leader)]
        for name in INTERNAL:
            new = NewTopic(name, configs=INTERNAL_CONFIGS, assignments=dict.fromkeys(range(partitions), replicas))
            await self.broker.topics.create(new, internal=True)

    async def lead(self, name: str, leader: int) -> None:
        """The next epoch of a partition is this node's."""
        topic = self.broker.topics.require(name)
        record = self.broker.topics.partition(topic, 0)
        epochs = self.cluster.nodes.live()
        await self.set_record(
            topic,
            0,
            leader=leader,
            leader_epoch=record.leader_epoch + 1,
            leader_node_epoch=epochs[leader],
            isr=tuple((node, epochs[node]) for node in record.replicas),
        )

    def led(self, name: str) -> Partition:
        return self.broker.partition(name, 0)

    def copied(self, name: str) -> None:
        """Both followers have all that is written."""
        for follower in (OTHER, THIRD):
            self.fetched(self.led(name), follower, self.led(name).log.written_offset)

    async def copied_all(self, name: str) -> None:
        """Both followers have all, as soon as it is written."""
        partition = self.led(name)
        await until(lambda: partition.log.written_offset == partition.log.next_offset, "it is written")
        self.copied(name)

    def begin_commit(self, offset: int) -> "asyncio.Future[dict[PartitionKey, Reason | None]]":
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = CommitOffsets(GROUP, (OffsetToCommit(KEY, offset),))
        self.broker.groups.commit_offsets(request, told.set_result)
        return told

    async def has_committed(self, offset: int) -> None:
        told = self.begin_commit(offset)
        await self.copied_all(OFFSETS_TOPIC)
        assert await told == {KEY: None}

    def joining(self) -> "asyncio.Future[JoinResult]":
        told: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self.broker.groups.join(join_request(), told.set_result)
        return told

    def doors(self) -> dict[str, Callable[[], Reason | None]]:
        """What a client may ask about a group, and the reason of its refusal."""
        groups = self.broker.groups

        def told(
            call: Callable[[Callable[[Any], None]], object], reason: Callable[[Any], Reason | None]
        ) -> Reason | None:
            answers: list[Any] = []
            call(answers.append)
            return reason(answers[0])

        return {
            "join": lambda: told(lambda done: groups.join(join_request(), done), lambda found: found.reason),
            "sync": lambda: told(lambda done: groups.sync(sync_request(), done), lambda found: found.reason),
            "heartbeat": lambda: groups.heartbeat(GROUP, MemberId("m"), 1),
            "leave": lambda: refused(lambda: groups.leave(GROUP, [LeavingMember(MemberId("m"), None)])),
            "commit": lambda: told(lambda done: self._commit_done(done), lambda found: found[KEY]),
            "commit one": lambda: refused(lambda: groups.commit_offset(GROUP, OffsetToCommit(KEY, 0), print)),
            "fetch": lambda: refused(lambda: groups.fetch_offsets(GROUP, None)),
            "delete offsets": lambda: refused(lambda: groups.delete_offsets(GROUP, [KEY], print)),
            "describe": lambda: groups.describe(GROUP).reason,
            "delete": lambda: told(lambda done: groups.delete_groups([GROUP], done), lambda found: found[GROUP]),
            "share": lambda: refused(
                lambda: groups.shared.join(GROUP, TOPIC, "c", session_timeout_ms=None, client="test")
            ),
            "share heartbeat": lambda: refused(lambda: groups.shared.heartbeat(GROUP, "c")),
            "share leave": lambda: refused(lambda: groups.shared.leave(GROUP, "c")),
        }

    def _commit_done(self, done: Callable[[Any], None]) -> None:
        request = CommitOffsets(GROUP, (OffsetToCommit(KEY, 1),))
        self.broker.groups.commit_offsets(request, done)

    def send(self) -> Reason | None:
        """With a produce key."""
        return refused(
            lambda: self.broker.idempotency.publish_once(
                self.caller, TOPIC, NewRecord(None, b"v"), Acks.ALL, "", "k", lambda *_: None
            )
        )


def join_request() -> JoinClassicGroup:
    return JoinClassicGroup(
        group=GROUP,
        member_id=MemberId(""),
        client_id="test",
        client_host="here",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", b""),),
        require_known_member_id=False,
    )


def sync_request() -> SyncClassicGroup:
    return SyncClassicGroup(GROUP, MemberId("m"), 1, {})


def refused(call: Callable[[], object]) -> Reason | None:
    try:
        call()
    except PenstockError as error:
        return error.reason
    return None


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        yield made


async def served(node: Node) -> None:
    await until(lambda: node.broker.groups.describe(GROUP).reason is None, "the groups are served")
    await until(lambda: node.send() is None, "the keys are served")
    await until(lambda: refused(node.broker.sinks.names) is None, "the sinks are served")


async def test_who_speaks_for_what_is_who_leads_its_partition(node: Node) -> None:
    coordinators = node.cluster.coordinators
    for ask in (lambda: coordinators.node_of(GROUP), coordinators.sinks_node):
        assert refused(ask) is Reason.COORDINATOR_NOT_AVAILABLE
    await node.made(OTHER)
    topic = node.broker.topics.require(TOPIC)
    assert (coordinators.node_of(GROUP), coordinators.keys_node(topic), coordinators.sinks_node()) == (OTHER,) * 3
    await node.lead(IDEMPOTENCY_TOPIC, NODE)
    await node.lead(SINKS_TOPIC, THIRD)
    assert (coordinators.node_of(GROUP), coordinators.keys_node(topic), coordinators.sinks_node()) == (
        OTHER,
        NODE,
        THIRD,
    )


async def test_nobody_speaks_for_a_group_whose_partitions_are_led_by_two(node: Node) -> None:
    await node.made(OTHER)
    await node.lead(OFFSETS_TOPIC, NODE)
    assert refused(lambda: node.cluster.coordinators.node_of(GROUP)) is Reason.COORDINATOR_NOT_AVAILABLE
    assert node.broker.groups.describe(GROUP).reason is Reason.NOT_COORDINATOR
    await node.lead(QUEUE_STATE_TOPIC, NODE)
    assert node.cluster.coordinators.node_of(GROUP) == NODE
    await until(lambda: node.broker.groups.describe(GROUP).reason is None, "the groups are served")


async def test_every_door_of_a_group_says_that_another_node_coordinates_it(node: Node) -> None:
    await node.made(OTHER)
    assert {name: door() for name, door in node.doors().items()} == dict.fromkeys(node.doors(), Reason.NOT_COORDINATOR)
    assert node.broker.groups.list_groups() == []
    assert node.send() is Reason.NOT_COORDINATOR
    assert refused(node.broker.sinks.names) is Reason.NOT_COORDINATOR


async def test_nothing_is_served_before_all_that_was_promised_is_known_to_be_committed(node: Node) -> None:
    await node.made()
    await served(node)
    await node.has_committed(5)
    # Written by this node, and not known to be with the others when it was named again.
    node.begin_commit(9).add_done_callback(lambda _: None)
    partition = node.led(OFFSETS_TOPIC)
    await until(lambda: partition.log.written_offset == partition.log.next_offset, "it is written")
    for name in INTERNAL:
        await node.lead(name, NODE)
    for _ in range(10):
        await turn()
    loading = {
        # A member that was there is loaded with a fresh session, and a sync belongs to a generation that is not loaded.
        name: None
        if name == "heartbeat"
        else Reason.REBALANCE_IN_PROGRESS
        if name == "sync"
        else Reason.COORDINATOR_LOAD_IN_PROGRESS
        for name in node.doors()
    }
    assert {name: door() for name, door in node.doors().items()} == loading
    assert refused(node.broker.groups.list_groups) is Reason.COORDINATOR_LOAD_IN_PROGRESS
    await node.copied_all(OFFSETS_TOPIC)
    await until(lambda: node.broker.groups.describe(GROUP).reason is None, "the groups are served")
    assert node.broker.groups.fetch_offsets(GROUP, None)[KEY].offset == 9


async def test_a_commit_is_answered_once_all_that_are_in_sync_have_it(node: Node) -> None:
    await node.made()
    await served(node)
    told = node.begin_commit(5)
    partition = node.led(OFFSETS_TOPIC)
    await until(lambda: partition.log.synced_offset or partition.log.written_offset == 1, "it is written")
    node.fetched(partition, OTHER, 1)
    assert not told.done()
    assert node.broker.groups.fetch_offsets(GROUP, None) == {}
    node.fetched(partition, THIRD, 1)
    assert await told == {KEY: None}
    assert node.broker.groups.fetch_offsets(GROUP, None)[KEY].offset == 5


async def test_a_commit_is_refused_where_too_few_are_in_sync_and_nothing_is_written(node: Node) -> None:
    await node.made()
    await served(node)
    topic = node.broker.topics.require(OFFSETS_TOPIC)
    await node.set_record(topic, 0, isr=((NODE, node.cluster.nodes.live()[NODE]),))
    assert await node.begin_commit(5) == {KEY: Reason.COORDINATOR_NOT_AVAILABLE}
    assert node.led(OFFSETS_TOPIC).log.next_offset == 0


async def test_whoever_waits_is_told_when_another_node_takes_over_and_nothing_is_written_after_that(node: Node) -> None:
    await node.made()
    await served(node)
    await node.has_committed(3)
    member = node.joining()
    joined = await member
    assert joined.reason is None
    synced: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
    request = SyncClassicGroup(GROUP, joined.member_id, joined.generation, {joined.member_id: b"all"})
    node.broker.groups.sync(request, synced.set_result)
    joining = node.joining()
    committing = node.begin_commit(7)
    partition = node.led(OFFSETS_TOPIC)
    end = partition.log.next_offset
    await node.lead(OFFSETS_TOPIC, OTHER)
    assert (await synced).reason in (Reason.NOT_COORDINATOR, Reason.REBALANCE_IN_PROGRESS)
    assert (await joining).reason is Reason.NOT_COORDINATOR
    assert set((await committing).values()) <= {
        Reason.NOT_COORDINATOR,
        Reason.UNKNOWN_MEMBER_ID,
        Reason.ILLEGAL_GENERATION,
    }
    assert {name: door() for name, door in node.doors().items()} == dict.fromkeys(node.doors(), Reason.NOT_COORDINATOR)
    # Long after every session.
    node.clock.advance(3_600_000)
    for rules in node.broker.timed:
        rules.tick(node.clock.monotonic_ms())
    assert partition.log.next_offset == end


async def test_a_log_that_is_led_no_more_takes_no_append_and_lets_nobody_wait(node: Node) -> None:
    await node.made()
    await served(node)
    told: list[Reason | None] = []
    groups_log = node.broker.groups.family.topic
    partition = node.led(OFFSETS_TOPIC)

    def from_within(_: Reason | None) -> None:
        """Whoever is told of the end may want to write something."""
        told.append(refused(lambda: groups_log.append(0, [(b"k", b"v")])))
        groups_log.when_committed(0, 100, told.append)

    partition.when_committed(1, from_within)
    await node.lead(OFFSETS_TOPIC, OTHER)
    assert told == [Reason.NOT_LEADER_OR_FOLLOWER] * 2
    assert partition.log.next_offset == 0


async def test_a_large_log_is_replayed_in_pieces_and_others_have_their_turn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.made()
    await served(node)
    for offset in range(30):
        await node.has_committed(offset)
    monkeypatch.setattr("penstock.core.coordinators.runtime.PIECE_BYTES", 1)
    await node.lead(OFFSETS_TOPIC, NODE)
    await node.copied_all(OFFSETS_TOPIC)
    turns = 0
    while node.broker.groups.describe(GROUP).reason is Reason.COORDINATOR_LOAD_IN_PROGRESS:
        turns += 1
        assert turns < 1000
        await turn()
    assert turns > 3
    assert node.broker.groups.fetch_offsets(GROUP, None)[KEY].offset == 29


async def turn() -> None:
    """Let all others have their turn of the loop."""
    await asyncio.wait([asyncio.ensure_future(_nothing())])


async def _nothing() -> None:
    """Done at its first step."""


async def test_a_node_that_resigns_in_the_middle_of_a_replay_serves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.made()
    await served(node)
    for offset in range(30):
        await node.has_committed(offset)
    monkeypatch.setattr("penstock.core.coordinators.runtime.PIECE_BYTES", 1)
    await node.lead(OFFSETS_TOPIC, NODE)
    await node.copied_all(OFFSETS_TOPIC)
    while node.broker.groups.family.loading is None:
        await turn()
    assert node.broker.groups.describe(GROUP).reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
    await node.lead(OFFSETS_TOPIC, OTHER)
    for _ in range(40):
        await turn()
        node.broker.groups.tick(node.clock.monotonic_ms())
    assert node.broker.groups.describe(GROUP).reason is Reason.NOT_COORDINATOR
    assert node.broker.groups.list_groups() == []


async def test_offsets_of_a_topic_that_is_made_anew_during_the_replay_are_forgotten(node: Node) -> None:
    await node.made()
    await served(node)
    await node.has_committed(5)
    await node.lead(OFFSETS_TOPIC, NODE)
    partition = node.led(OFFSETS_TOPIC)
    node.broker.groups.family.begin_load(0)
    await node.broker.topics.delete(TOPIC)
    await node.place(TOPIC, (OTHER, NODE, THIRD))
    while not node.broker.groups.family.load_some(0):
        pass
    assert node.broker.groups.fetch_offsets(GROUP, None) == {}
    assert partition.log.next_offset == 2


async def test_keys_and_sinks_are_loading_until_their_logs_are_known_to_be_committed(node: Node) -> None:
    await node.made()
    await served(node)
    for name in (IDEMPOTENCY_TOPIC, SINKS_TOPIC):
        await node.append_written(name, 0, 1)
        await node.lead(name, NODE)
    for _ in range(10):
        await turn()
    assert node.send() is Reason.COORDINATOR_LOAD_IN_PROGRESS
    assert refused(node.broker.sinks.names) is Reason.COORDINATOR_LOAD_IN_PROGRESS
    for name in (IDEMPOTENCY_TOPIC, SINKS_TOPIC):
        node.copied(name)
    await until(lambda: node.send() is None, "the keys are served")
    await until(lambda: refused(node.broker.sinks.names) is None, "the sinks are served")


async def test_registered_groups_are_looked_through_once_for_all_partitions_that_are_loaded_together(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = node.broker.registry
    awaited_topics, scans = registry.awaited_topics, list[int]()
    monkeypatch.setattr(registry, "awaited_topics", lambda: scans.append(1) or awaited_topics())
    await node.made(partitions=5)
    await until(lambda: len(node.broker.groups.family.shards) == 5, "the groups are expected")
    await until(lambda: all(map(node.broker.queues.family.serves, range(5))), "the queues are served")
    assert scans == [1]


async def test_nothing_is_committed_from_a_staging_topic_whose_end_is_not_known_yet(node: Node) -> None:
    await node.made()
    await served(node)
    opened: list[Any] = []
    node.broker.sinks.open("s", opened.append)
    await until(lambda: node.led(SINKS_TOPIC).log.next_offset, "it is stored")
    await node.copied_all(SINKS_TOPIC)
    await until(lambda: opened, "the sink is there")
    assert isinstance(opened[0], OpenedSink)
    staging = opened[0].staging_topic
    await node.append_written(staging, 0, 1)
    await node.lead(staging, NODE)
    assert node.broker.sinks.status("s").staged_bytes == 0

    def commit() -> list[Any]:
        told: list[Any] = []
        node.broker.sinks.commit(node.caller, CommitSink("s", 1, [SinkPart(TOPIC, 0, [(0, 0, 1)])]), told.append)
        return told

    refusal = commit()
    await until(lambda: refusal, "it is refused")
    assert refusal[0].reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
    await node.copied_all(staging)
    assert node.broker.sinks.status("s").staged_bytes > 0
    commit()
    await until(lambda: node.led(SINKS_TOPIC).log.next_offset == 2, "it is intended")


async def test_who_waits_for_a_key_is_told_when_another_node_takes_over(node: Node) -> None:
    await node.made()
    await served(node)
    told: list[Any] = []
    node.broker.idempotency.publish_once(
        node.caller, TOPIC, NewRecord(None, b"v"), Acks.ALL, "", "other", lambda result, _: told.append(result)
    )
    partition = node.led(IDEMPOTENCY_TOPIC)
    await until(lambda: partition.log.next_offset, "the intent is appended")
    end = partition.log.next_offset
    await node.lead(IDEMPOTENCY_TOPIC, OTHER)
    assert [error.reason for error in told] == [Reason.NOT_COORDINATOR]
    assert node.send() is Reason.NOT_COORDINATOR
    assert node.broker.idempotency.key_count == 0
    assert node.broker.idempotency.next_deadline_ms() is None
    assert partition.log.next_offset == end


@pytest.mark.parametrize("leader", [NODE, OTHER])
async def test_nobody_coordinates_what_is_led_in_an_earlier_life(tmp_path: Path, leader: int) -> None:
    async with Node(tmp_path) as node:
        await node.made(leader)
        topic = node.broker.topics.require(TOPIC)
        coordinators = node.cluster.coordinators
        asked = (lambda: coordinators.node_of(GROUP), lambda: coordinators.keys_node(topic), coordinators.sinks_node)
        assert [ask() for ask in asked] == [leader] * 3
        # Its process has ended and begun anew, and the controller has not named anybody yet.
        await node.leave(leader)
        await node.join(leader)
        for ask in asked:
            with pytest.raises(PenstockError) as refused:
                ask()
            assert refused.value.reason is Reason.COORDINATOR_NOT_AVAILABLE
        for name in INTERNAL:
            await node.lead(name, leader)
        assert [ask() for ask in asked] == [leader] * 3
