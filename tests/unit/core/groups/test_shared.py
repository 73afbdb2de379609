"""Members whose partitions the broker assigns: who has what, for how long, and what the rest of a group sees of them."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.groups.commits import EXPIRY_CHECK_INTERVAL_MS
from penstock.core.groups.requests import GroupListing
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, SHARED_MEMBER_TOPICS_MAX
from penstock.operations.groups import GroupState, OffsetToCommit
from penstock.settings import GroupSettings
from penstock.types import GroupId, PartitionKey, TopicName
from penstock.wire.kafka.consumer_protocol import decode_assignment, decode_subscription
from tests.unit.core.groups.world import GROUP, TOPIC, Box, World

OTHER = TopicName("other")
SESSION_MS = 10_000


@pytest.fixture
def world():
    world = World()
    world.topics.counts[TOPIC] = 5
    return world


def join(world, consumer, *, group=GROUP, topic=TOPIC, session_timeout_ms=SESSION_MS, on_change=None):
    return world.groups.shared.join(
        group,
        topic,
        consumer,
        session_timeout_ms=session_timeout_ms,
        client="/127.0.0.1",
        on_change=on_change,
    )


def has(world, consumer, *, group=GROUP, topic=TOPIC):
    return world.groups.shared.partitions(group, topic, consumer)


def refusal(call):
    with pytest.raises(PenstockError) as refused:
        call()
    return refused.value.reason


class TestSharing:
    def test_a_partition_goes_to_the_member_at_its_number_modulo_the_members_in_the_order_of_their_ids(
        self, world
    ) -> None:
        assert join(world, "b") == (0, 1, 2, 3, 4)
        assert join(world, "a") == (0, 2, 4)
        assert has(world, "b") == (1, 3)
        assert join(world, "c") == (2,)
        assert (has(world, "a"), has(world, "b")) == ((0, 3), (1, 4))

    def test_more_members_than_partitions_leave_some_with_none(self, world) -> None:
        for name in "abcdefg":
            join(world, name)
        assert [has(world, name) for name in "abcdefg"] == [(0,), (1,), (2,), (3,), (4,), (), ()]

    def test_members_of_different_topics_do_not_take_each_others_partitions(self, world) -> None:
        join(world, "a")
        join(world, "b", topic=OTHER)
        assert has(world, "a") == (0, 1, 2, 3, 4)
        assert has(world, "b", topic=OTHER) == tuple(range(8))
        assert has(world, "b") == ()

    def test_one_member_may_read_several_topics_and_leaves_all_of_them_at_once(self, world) -> None:
        join(world, "a")
        join(world, "b")
        join(world, "a", topic=OTHER)
        world.groups.shared.leave(GROUP, "a")
        assert has(world, "b") == (0, 1, 2, 3, 4)
        assert refusal(lambda: has(world, "a")) is Reason.UNKNOWN_CONSUMER

    def test_groups_do_not_know_of_each_other(self, world) -> None:
        join(world, "a")
        assert join(world, "b", group=GroupId("elsewhere")) == (0, 1, 2, 3, 4)

    def test_joining_again_changes_nothing(self, world) -> None:
        join(world, "a")
        join(world, "b")
        assert join(world, "a") == (0, 2, 4)
        assert len(world.groups.describe(GROUP).members) == 2


class TestBeingTold:
    def test_a_member_is_told_its_partitions_when_they_change_and_not_otherwise(self, world) -> None:
        told = []
        assert join(world, "a", on_change=told.append) == (0, 1, 2, 3, 4)
        assert told == []
        join(world, "b")
        join(world, "b")
        world.groups.shared.leave(GROUP, "b")
        assert told == [(0, 2, 4), (0, 1, 2, 3, 4)]

    def test_a_topic_that_grows_is_shared_anew(self, world) -> None:
        first, second = [], []
        join(world, "a", on_change=first.append)
        join(world, "b", on_change=second.append)
        first.clear()
        world.topics.counts[TOPIC] = 6
        world.groups.topic_changed(TOPIC)
        assert (first, second) == ([], [(1, 3, 5)])

    def test_a_deleted_topic_leaves_its_readers_with_nothing_until_there_is_one_again(self, world) -> None:
        told = []
        join(world, "a", on_change=told.append)
        del world.topics.counts[TOPIC]
        world.groups.forget_topic(TOPIC)
        world.groups.shared.heartbeat(GROUP, "a")
        world.topics.counts[TOPIC] = 2
        world.groups.topic_changed(TOPIC)
        assert told == [(), (0, 1)]

    def test_a_change_of_a_topic_that_nobody_reads_any_more_tells_nobody(self, world) -> None:
        told = []
        join(world, "a", on_change=told.append)
        world.groups.shared.leave(GROUP, "a")
        world.groups.topic_changed(TOPIC)
        assert told == []

    def test_who_is_told_may_leave_and_join_at_once(self, world) -> None:
        told = []

        def again(partitions) -> None:
            told.append(partitions)
            if len(told) == 1:
                world.groups.shared.leave(GROUP, "a")
                join(world, "a", on_change=again)

        join(world, "a", on_change=again)
        join(world, "b")
        assert told[0] == has(world, "a") == (0, 2, 4)
        assert has(world, "b") == (1, 3)

    def test_the_newer_of_two_with_one_id_has_the_place_and_the_older_is_told_so(self, world) -> None:
        older, newer = [], []
        join(world, "a", on_change=older.append)
        join(world, "a", on_change=newer.append)
        assert (older, newer) == ([()], [])
        join(world, "b")
        assert (older, newer) == ([()], [(0, 2, 4)])

    def test_the_older_of_two_with_one_id_does_not_take_the_place_with_it_when_it_leaves(self, world) -> None:
        older, newer = [], []
        join(world, "a", on_change=older.append)
        join(world, "a", on_change=newer.append)
        world.groups.shared.leave(GROUP, "a", older.append)
        assert has(world, "a") == (0, 1, 2, 3, 4)
        world.groups.shared.leave(GROUP, "a", newer.append)
        assert world.state() is GroupState.DEAD


class TestSessions:
    def test_a_silent_members_partitions_go_to_the_others_without_any_request(self, world) -> None:
        told = []
        join(world, "a", session_timeout_ms=60_000, on_change=told.append)
        join(world, "b")
        world.advance(SESSION_MS - 1)
        assert told == [(0, 2, 4)]
        world.advance(1)
        assert told == [(0, 2, 4), (0, 1, 2, 3, 4)]

    @pytest.mark.parametrize("sign_of_life", ["heartbeat", "join"])
    def test_a_member_that_shows_itself_stays(self, world, sign_of_life) -> None:
        join(world, "a")
        for _ in range(5):
            world.advance(SESSION_MS - 1)
            if sign_of_life == "join":
                join(world, "a")
            else:
                world.groups.shared.heartbeat(GROUP, "a")
        assert has(world, "a") == (0, 1, 2, 3, 4)

    def test_a_member_without_a_session_stays_until_it_leaves(self, world) -> None:
        join(world, "a", session_timeout_ms=None)
        world.advance(100 * SESSION_MS)
        assert has(world, "a") == (0, 1, 2, 3, 4)

    def test_the_session_is_that_of_the_latest_join(self, world) -> None:
        join(world, "a")
        join(world, "a", session_timeout_ms=None)
        world.advance(2 * SESSION_MS)
        join(world, "a", session_timeout_ms=1_000)
        world.advance(1_000)
        assert refusal(lambda: has(world, "a")) is Reason.GROUP_ID_NOT_FOUND

    def test_a_member_that_left_leaves_no_timer(self, world) -> None:
        join(world, "a")
        world.groups.shared.leave(GROUP, "a")
        join(world, "a", session_timeout_ms=None)
        world.advance(2 * SESSION_MS)
        assert has(world, "a") == (0, 1, 2, 3, 4)

    def test_who_is_not_a_member_is_told_to_join(self, world) -> None:
        shared = world.groups.shared
        assert refusal(lambda: shared.heartbeat(GROUP, "a")) is Reason.GROUP_ID_NOT_FOUND
        assert refusal(lambda: shared.leave(GROUP, "a")) is Reason.GROUP_ID_NOT_FOUND
        join(world, "b")
        assert refusal(lambda: shared.heartbeat(GROUP, "a")) is Reason.UNKNOWN_CONSUMER
        assert refusal(lambda: shared.leave(GROUP, "a")) is Reason.UNKNOWN_CONSUMER

    def test_members_are_soft_and_offsets_are_not(self, world) -> None:
        join(world, "a")
        box = Box()
        world.groups.commit_offset(GROUP, OffsetToCommit(PartitionKey(TOPIC, 1), 9), box)
        assert box.answer is None
        world.restart()
        assert world.groups.describe(GROUP).members == ()
        assert world.committed(1).offset == 9
        assert join(world, "a") == (0, 1, 2, 3, 4)


class TestTheGroup:
    def test_an_administrator_sees_a_stable_group_of_consumers_with_their_partitions(self, world) -> None:
        join(world, "b")
        join(world, "a")
        join(world, "a", topic=OTHER)
        group = world.groups.describe(GROUP)
        assert (group.state, group.protocol_type, group.protocol) == (GroupState.STABLE, "consumer", "broker")
        seen = {member.member_id: member for member in group.members}
        assert (seen["a"].client_id, seen["a"].client_host, seen["a"].instance_id) == ("a", "/127.0.0.1", None)
        assert decode_subscription(seen["a"].metadata).topics == [TOPIC, OTHER]
        held = decode_assignment(seen["a"].assignment).assigned_partitions
        assert [(each.topic, each.partitions) for each in held] == [(TOPIC, [0, 2, 4]), (OTHER, list(range(8)))]
        (one,) = decode_assignment(seen["b"].assignment).assigned_partitions
        assert one.partitions == [1, 3]

    def test_it_is_listed(self, world) -> None:
        join(world, "a")
        assert world.groups.list_groups() == [GroupListing(GROUP, "consumer", GroupState.STABLE)]
        assert [each for each in world.groups.list_groups() if each.state is GroupState.EMPTY] == []

    def test_it_is_gone_with_its_last_member_unless_it_has_offsets(self, world) -> None:
        join(world, "a")
        world.groups.shared.leave(GROUP, "a")
        assert world.groups.list_groups() == []
        world.commit(5)
        join(world, "a")
        world.groups.shared.leave(GROUP, "a")
        assert world.groups.list_groups() == [GroupListing(GROUP, "consumer", GroupState.EMPTY)]

    def test_it_cannot_be_deleted_while_it_has_members(self, world) -> None:
        world.commit(5)
        join(world, "a")
        box = Box()
        world.groups.delete_groups([GROUP], box)
        assert box.answer == {GROUP: Reason.NON_EMPTY_GROUP}
        world.groups.shared.leave(GROUP, "a")
        box = Box()
        world.groups.delete_groups([GROUP], box)
        assert box.answer == {GROUP: None}

    def test_a_group_being_deleted_takes_nobody_in(self, world) -> None:
        world.commit(5)
        world.log.hold = True
        world.groups.delete_groups([GROUP], Box())
        assert refusal(lambda: join(world, "a")) is Reason.COORDINATOR_NOT_AVAILABLE
        world.log.settle()
        assert join(world, "a") == (0, 1, 2, 3, 4)

    def test_members_keep_the_offsets_of_their_topics(self, world) -> None:
        world.commit(5)
        world.commit(6, topic=OTHER)
        join(world, "a", session_timeout_ms=None)
        world.advance(world.settings.offsets_retention_ms + 2 * EXPIRY_CHECK_INTERVAL_MS)
        assert world.committed().offset == 5
        assert world.committed(topic=OTHER) is None
        world.groups.shared.leave(GROUP, "a")
        world.advance(world.settings.offsets_retention_ms - 1)
        assert world.committed().offset == 5
        world.advance(2 * EXPIRY_CHECK_INTERVAL_MS)
        assert world.committed() is None

    def test_a_node_that_gives_the_group_up_tells_its_members(self, world) -> None:
        told = []
        join(world, "a", on_change=told.append)
        world.groups.family.unload(world.log.partition_for(GROUP))
        assert told == [()]
        assert refusal(lambda: join(world, "a")) is Reason.NOT_COORDINATOR
        world.groups.family.load(world.log.partition_for(GROUP))
        world.advance(2 * SESSION_MS)
        assert join(world, "a") == (0, 1, 2, 3, 4)
        world.groups.topic_changed(TOPIC)
        assert told == [()]


class TestKafkaMembers:
    def test_a_kafka_consumer_cannot_join_readers_that_the_broker_assigns_to(self, world) -> None:
        join(world, "a")
        assert world.join().answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.join(require_known_member_id=True).answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert has(world, "a") == (0, 1, 2, 3, 4)
        world.groups.shared.leave(GROUP, "a")
        assert world.join().answer.reason is None

    def test_a_reader_cannot_join_kafka_consumers(self, world) -> None:
        (only,) = world.stable(1)
        assert refusal(lambda: join(world, "a")) is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.heartbeat(only) is None
        assert len(world.groups.describe(GROUP).members) == 1
        world.leave(only.member_id)
        assert join(world, "a") == (0, 1, 2, 3, 4)

    def test_a_kafka_consumer_that_was_given_an_id_comes_first(self, world) -> None:
        given = world.join(require_known_member_id=True).answer
        assert refusal(lambda: join(world, "a")) is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.join(given.member_id).answer.reason is None

    def test_a_kafka_consumer_without_membership_cannot_commit_under_the_members(self, world) -> None:
        join(world, "a")
        assert world.commit_code(5) is Reason.UNKNOWN_MEMBER_ID


class TestBounds:
    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"group": GroupId("")}, Reason.INVALID_GROUP_ID),
            ({"group": GroupId("g" * (GROUP_ID_CHARS_MAX + 1))}, Reason.INVALID_GROUP_ID),
            ({"topic": TopicName("absent")}, Reason.UNKNOWN_TOPIC_OR_PARTITION),
            ({"session_timeout_ms": 0}, Reason.INVALID_SESSION_TIMEOUT),
            ({"session_timeout_ms": 10**9}, Reason.INVALID_SESSION_TIMEOUT),
        ],
    )
    def test_what_cannot_be_joined_is_refused_and_leaves_nothing(self, world, asked, reason) -> None:
        assert refusal(lambda: join(world, "a", **asked)) is reason
        assert world.groups.list_groups() == []

    @pytest.mark.parametrize("name", ["", "c" * (GROUP_ID_CHARS_MAX + 1)])
    def test_a_consumer_has_a_name_of_some_length(self, world, name) -> None:
        assert refusal(lambda: join(world, name)) is Reason.INVALID_REQUEST

    def test_a_group_has_so_many_members_and_no_more(self) -> None:
        world = World(GroupSettings(members_max=2))
        join(world, "a")
        join(world, "b")
        assert refusal(lambda: join(world, "c")) is Reason.GROUP_MAX_SIZE_REACHED
        assert join(world, "a") == (0, 2, 4, 6)

    def test_there_are_so_many_groups_and_no_more(self, monkeypatch) -> None:
        world = World(GroupSettings())
        monkeypatch.setattr("penstock.core.groups.directory.GROUPS_MAX", 1)
        join(world, "a")
        assert refusal(lambda: join(world, "a", group=GroupId("more"))) is Reason.POLICY_VIOLATION

    def test_a_member_reads_so_many_topics_and_no_more(self, world) -> None:
        for index in range(SHARED_MEMBER_TOPICS_MAX + 1):
            world.topics.counts[TopicName(f"t{index}")] = 1
        for index in range(SHARED_MEMBER_TOPICS_MAX):
            join(world, "a", topic=TopicName(f"t{index}"))
        more = TopicName(f"t{SHARED_MEMBER_TOPICS_MAX}")
        assert refusal(lambda: join(world, "a", topic=more)) is Reason.POLICY_VIOLATION
        assert join(world, "b", topic=more) == (0,)


class SharedMachine(RuleBasedStateMachine):
    """Readers come, go, fall silent and show themselves while topics grow and vanish: everybody has what the rule says."""

    NAMES = ("a", "b", "c", "d")
    TOPICS = (TOPIC, OTHER)

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.counts = dict.fromkeys(self.TOPICS, 8)
        self.told: dict[tuple[str, TopicName], tuple[int, ...]] = {}
        self.reads: dict[TopicName, set[str]] = {topic: set() for topic in self.TOPICS}
        self.sessions: dict[str, int | None] = {}
        """When each runs out."""
        self.session_ms: dict[str, int | None] = {}

    def rule_for(self, topic, name):
        readers = sorted(self.reads[topic])
        return tuple(partition for partition in range(self.counts[topic]) if readers[partition % len(readers)] == name)

    def forget(self, name) -> None:
        self.sessions.pop(name, None)
        for readers in self.reads.values():
            readers.discard(name)

    def listener(self, name, topic):
        def told(partitions) -> None:
            self.told[name, topic] = partitions

        return told

    @rule(name=st.sampled_from(NAMES), topic=st.sampled_from(TOPICS), session=st.sampled_from([None, 1_000, 5_000]))
    def join(self, name, topic, session) -> None:
        if not self.counts[topic]:
            assert (
                refusal(lambda: join(self.world, name, topic=topic, session_timeout_ms=session))
                is Reason.UNKNOWN_TOPIC_OR_PARTITION
            )
            return
        self.reads[topic].add(name)
        self.sessions[name] = None if session is None else self.world.clock.monotonic + session
        self.told[name, topic] = join(
            self.world, name, topic=topic, session_timeout_ms=session, on_change=self.listener(name, topic)
        )
        self.session_ms[name] = session

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name) -> None:
        if name in self.sessions:
            self.world.groups.shared.heartbeat(GROUP, name)
            session = self.session_ms[name]
            self.sessions[name] = None if session is None else self.world.clock.monotonic + session
        else:
            reason = refusal(lambda: self.world.groups.shared.heartbeat(GROUP, name))
            assert reason is (Reason.UNKNOWN_CONSUMER if self.sessions else Reason.GROUP_ID_NOT_FOUND)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name) -> None:
        if name in self.sessions:
            self.world.groups.shared.leave(GROUP, name)
            self.forget(name)

    @rule(ms=st.integers(1, 3_000))
    def time_passes(self, ms) -> None:
        self.world.advance(ms)
        for name, until in list(self.sessions.items()):
            if until is not None and until <= self.world.clock.monotonic:
                self.forget(name)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 10))
    def topic_changes(self, topic, count) -> None:
        if count:
            self.world.topics.counts[topic] = count
            self.world.groups.topic_changed(topic)
        else:
            self.world.topics.counts.pop(topic, None)
            self.world.groups.forget_topic(topic)
        self.counts[topic] = count

    @invariant()
    def everybody_has_what_the_rule_says_and_was_told_so(self) -> None:
        for topic, readers in self.reads.items():
            for name in readers:
                expected = self.rule_for(topic, name)
                assert has(self.world, name, topic=topic) == expected
                assert self.told[name, topic] == expected
        assert self.world.state() is (GroupState.STABLE if self.sessions else GroupState.DEAD)
        members = {member.member_id for member in self.world.groups.describe(GROUP).members}
        assert members == set(self.sessions)


TestSharedMachine = SharedMachine.TestCase
