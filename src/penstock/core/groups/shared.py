"""Membership that the broker assigns: a reader says "I am here" and is given partitions, at once and without a vote.

These are the same groups as Kafka's, with the same offsets; only who shares the partitions differs, so a group has members of
one kind at a time: the other kind is told that it has no protocol in common. A group with such members is stable.

Membership is soft: nothing of it is stored. After a restart the members join again and get the same partitions, because who
has what follows from their ids alone. A member that is silent for longer than its session is removed by the clock, whether
or not anybody asks; a member without a session stays until it leaves.
"""

from functools import partial
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.directory import Directory, Partitions
from penstock.core.groups.group import Group
from penstock.core.groups.requests import GroupState, MemberDescription
from penstock.core.groups.shared_members import Change, OnChange, SharedMember, tell
from penstock.core.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, SHARED_MEMBER_TOPICS_MAX
from penstock.types import GroupId, MemberId, TopicName

PROTOCOL: Final = "broker"
"""What Kafka's clients show as the assignor of such a group."""


class SharedGroups:
    """The rules of membership that the broker assigns, for all groups of a directory."""

    def __init__(self, directory: Directory, partitions: Partitions) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._deadlines = directory.deadlines
        self._clock = directory.clock
        self._partitions = partitions
        self._by_topic: dict[TopicName, dict[Group, None]] = {}
        """Whom a change of a topic concerns."""

    def join(
        self,
        group: GroupId,
        topic: TopicName,
        consumer_id: str,
        *,
        session_timeout_ms: int | None,
        client: str,
        on_change: OnChange | None = None,
    ) -> tuple[int, ...]:
        """Take a reader of a topic in, or keep one alive; gives back its partitions. PenstockError when it cannot be.

        ``session_timeout_ms`` None: a member until it leaves. ``on_change`` is told its partitions whenever they change, but
        not by the join itself. Whoever joined before with the same id and topic and another ``on_change`` is told that
        it has no partitions: the newer one has its place.
        """
        self._check_join(group, topic, consumer_id, session_timeout_ms)
        found = self._directory.find_or_create(group)
        try:
            member = self._member(found, consumer_id, topic)
        except PenstockError:
            self._forget_if_void(found)
            raise
        member.client = client
        member.session_timeout_ms = session_timeout_ms
        changes = found.shared.subscribe(member, topic, on_change, self._partitions.partition_count(topic))
        self._by_topic.setdefault(topic, {})[found] = None
        self._keep_alive(member)
        self._settle(found)
        partitions = found.shared.partitions(topic, consumer_id)
        tell(changes)
        return partitions

    def heartbeat(self, group: GroupId, consumer_id: str) -> None:
        """Keep a member alive. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER when it must join again."""
        self._keep_alive(self._find(group, consumer_id)[1])

    def leave(self, group: GroupId, consumer_id: str, on_change: OnChange | None = None) -> None:
        """Give a member's partitions to the others. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER when there is no such member.

        With ``on_change`` only what was joined with it is left, and it is no mistake if that has gone to somebody else with
        the same id: a stream that ends does not take the place of the one that replaced it away.
        """
        found, member = self._find(group, consumer_id)
        left = [topic for topic, listener in member.topics.items() if on_change is None or listener == on_change]
        self._remove(found, member, left)

    def partitions(self, group: GroupId, topic: TopicName, consumer_id: str) -> tuple[int, ...]:
        """What a member has now. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER when there is no such member."""
        return self._find(group, consumer_id)[0].shared.partitions(topic, consumer_id)

    def describe(self, group: Group) -> tuple[MemberDescription, ...]:
        """The members, as an administrator sees Kafka's."""
        shared = group.shared
        return tuple(
            MemberDescription(
                member_id=MemberId(member.consumer_id),
                instance_id=None,
                client_id=member.consumer_id,
                client_host=member.client,
                metadata=shared.subscription(member),
                assignment=shared.assignment(member),
            )
            for member in shared.members.values()
        )

    def topic_changed(self, topic: TopicName) -> None:
        """A topic was made, deleted, or has more partitions: its readers share what there is now."""
        changes: list[Change] = []
        for group in self._by_topic.get(topic, ()):
            changes += group.shared.reassign(topic, self._partitions.partition_count(topic))
        tell(changes)

    def abandon(self, group: Group) -> None:
        """This node no longer speaks for the group: its members have nothing here."""
        told = []
        for member in group.shared.members.values():
            self._deadlines.cancel(member.session)
            told += [Change(on_change, ()) for on_change in member.topics.values() if on_change is not None]
        for topic in group.shared.topics:
            self._drop(topic, group)
        group.shared.clear()
        tell(told)

    # -- the rules

    def _check_join(self, group: GroupId, topic: TopicName, consumer_id: str, session_timeout_ms: int | None) -> None:
        if not group:
            raise PenstockError(Reason.INVALID_GROUP_ID, "a group needs a name")
        if not 0 < len(consumer_id) <= GROUP_ID_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"a consumer's id has 1 to {GROUP_ID_CHARS_MAX} characters; choose another one"
            )
        longest_ms = self._settings.session_timeout_ms_max
        if session_timeout_ms is not None and not 0 < session_timeout_ms <= longest_ms:
            raise PenstockError(
                Reason.INVALID_SESSION_TIMEOUT,
                f"a session lasts 1 to {longest_ms} milliseconds, not {session_timeout_ms}",
            )
        if not self._partitions.exists(topic, 0):
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic!a}. Create it, then join again."
            )

    def _member(self, group: Group, consumer_id: str, topic: TopicName) -> SharedMember:
        if group.state is GroupState.DEAD:
            raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, "the group is being removed; try again in a moment")
        if not group.shared and (group.state is not GroupState.EMPTY or group.pending):
            raise PenstockError(
                Reason.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id} has Kafka consumers, which assign its partitions themselves; stop them first, or join another group",
            )
        member = group.shared.members.get(consumer_id)
        if member is None:
            if len(group.shared) >= self._settings.members_max:
                raise PenstockError(
                    Reason.GROUP_MAX_SIZE_REACHED,
                    f"group {group.group_id} has {len(group.shared)} members, which is the limit; join another group",
                )
            member = SharedMember(consumer_id, "", None, Timer())
            member.session.fire = partial(self._expired, group, member)
        elif topic not in member.topics and len(member.topics) >= SHARED_MEMBER_TOPICS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{consumer_id} reads {len(member.topics)} topics, which is the limit; join with another consumer id",
            )
        return member

    def _find(self, group_id: GroupId, consumer_id: str) -> tuple[Group, SharedMember]:
        group = self._directory.find(group_id)
        if group is None:
            raise PenstockError(Reason.GROUP_ID_NOT_FOUND, f"there is no group {group_id}; join it first")
        member = group.shared.members.get(consumer_id)
        if member is None:
            raise PenstockError(
                Reason.UNKNOWN_CONSUMER,
                f"{consumer_id} is not a member of group {group_id}, or its session has expired; join again",
            )
        return group, member

    def _keep_alive(self, member: SharedMember) -> None:
        if member.session_timeout_ms is None:
            self._deadlines.cancel(member.session)
        else:
            self._deadlines.set(member.session, self._clock.monotonic_ms() + member.session_timeout_ms)

    def _expired(self, group: Group, member: SharedMember) -> None:
        self._remove(group, member, list(member.topics))

    def _remove(self, group: Group, member: SharedMember, topics: list[TopicName]) -> None:
        changes: list[Change] = []
        for topic in topics:
            changes += group.shared.unsubscribe(member, topic, self._partitions.partition_count(topic))
            if topic not in group.shared.topics:
                self._drop(topic, group)
        if not member.topics:
            self._deadlines.cancel(member.session)
        self._settle(group)
        self._forget_if_void(group)
        tell(changes)

    def _drop(self, topic: TopicName, group: Group) -> None:
        concerned = self._by_topic[topic]
        del concerned[group]
        if not concerned:
            del self._by_topic[topic]

    def _settle(self, group: Group) -> None:
        """The state of the group, which keeps its offsets while they are read by, follows from whether it has members."""
        state = GroupState.STABLE if group.shared else GroupState.EMPTY
        if state is not group.state:
            group.enter(state, self._clock.now_ms())
        group.protocol_type = CONSUMER_PROTOCOL_TYPE
        group.protocol = PROTOCOL if group.shared else None
        group.subscribed = frozenset(group.shared.topics)

    def _forget_if_void(self, group: Group) -> None:
        if group.is_void and group.generation == 0:
            self._directory.forget([group])
