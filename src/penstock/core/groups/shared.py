"""Membership with partitions that the broker assigns: a reader joins and gets partitions at once, without a rebalance.

These are the same groups as Kafka's, with the same offsets. Only the assignment differs, so a group has members of one kind at a
time, and the other kind is refused with INCONSISTENT_GROUP_PROTOCOL. A group with such members is stable.

Membership is not stored. After a restart the members join again and get the same partitions, because the assignment follows from
their ids alone. A member expires with its session; a member without a session stays until it leaves.
"""

from functools import partial
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.directory import Directory, Partitions
from penstock.core.groups.group import Group
from penstock.core.groups.shared_members import Change, OnChange, SharedMember, announce
from penstock.core.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, SHARED_MEMBER_TOPICS_MAX
from penstock.operations.groups import GroupState, MemberDescription
from penstock.types import GroupId, MemberId, TopicName

PROTOCOL: Final = "broker"
"""The assignor of such a group, as Kafka's clients show it."""


class SharedGroups:
    """The members with partitions that the broker assigns, for all groups of a directory."""

    def __init__(self, directory: Directory, partitions: Partitions) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._deadlines = directory.deadlines
        self._clock = directory.clock
        self._partitions = partitions
        self._by_topic: dict[TopicName, dict[Group, None]] = {}
        """The groups that read each topic."""

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
        """Add a reader of a topic, or keep it alive; returns its partitions.

        Without ``session_timeout_ms`` it is a member until it leaves. ``on_change`` gets its partitions whenever they change, except
        for this join. A member with the same id and topic and another ``on_change`` is replaced, and gets no partitions.
        """
        self._check_join(group, topic, consumer_id, session_timeout_ms)
        found = self._directory.find_or_create_alive(group)
        try:
            member = self._member(found, consumer_id, topic)
        except PenstockError:
            self._directory.forget_if_unused(found)
            raise
        member.client = client
        member.session_timeout_ms = session_timeout_ms
        changes = found.shared.subscribe(member, topic, on_change, self._partitions.partition_count(topic))
        self._by_topic.setdefault(topic, {})[found] = None
        self._keep_alive(member)
        self._settle(found)
        partitions = found.shared.partitions(topic, consumer_id)
        announce(changes)
        return partitions

    def heartbeat(self, group: GroupId, consumer_id: str) -> None:
        """Keep a member alive. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER if it must join again."""
        self._keep_alive(self._find(group, consumer_id)[1])

    def leave(self, group: GroupId, consumer_id: str, on_change: OnChange | None = None) -> None:
        """Give a member's partitions to the others. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER if there is no such member.

        With ``on_change``, leave only the topics that were joined with it: a stream that ends must not remove the one that replaced it.
        """
        found, member = self._find(group, consumer_id)
        left = [topic for topic, listener in member.topics.items() if on_change is None or listener == on_change]
        self._remove(found, member, left)

    def partitions(self, group: GroupId, topic: TopicName, consumer_id: str) -> tuple[int, ...]:
        """The partitions of a member. GROUP_ID_NOT_FOUND or UNKNOWN_CONSUMER if there is no such member."""
        return self._find(group, consumer_id)[0].shared.partitions(topic, consumer_id)

    def describe(self, group: Group) -> tuple[MemberDescription, ...]:
        """The members, described as Kafka's are."""
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
        """A topic was created, deleted, or has more partitions: assign its partitions again."""
        changes: list[Change] = []
        for group in self._by_topic.get(topic, ()):
            changes += group.shared.reassign(topic, self._partitions.partition_count(topic))
        announce(changes)

    def abandon(self, group: Group) -> None:
        """This node no longer coordinates the group: its members have no partitions here."""
        changes = []
        for member in group.shared.members.values():
            self._deadlines.cancel(member.session)
            changes += [Change(on_change, ()) for on_change in member.topics.values() if on_change is not None]
        for topic in group.shared.topics:
            self._drop(topic, group)
        group.shared.clear()
        announce(changes)

    # -- the rules

    def _check_join(self, group: GroupId, topic: TopicName, consumer_id: str, session_timeout_ms: int | None) -> None:
        if not group:
            raise PenstockError(Reason.INVALID_GROUP_ID, "A group needs a name")
        if not 0 < len(consumer_id) <= GROUP_ID_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"A consumer's id has 1 to {GROUP_ID_CHARS_MAX} characters; choose another one"
            )
        longest_ms = self._settings.session_timeout_ms_max
        if session_timeout_ms is not None and not 0 < session_timeout_ms <= longest_ms:
            raise PenstockError(
                Reason.INVALID_SESSION_TIMEOUT,
                f"A session lasts 1 to {longest_ms} milliseconds, not {session_timeout_ms}",
            )
        if not self._partitions.exists(topic, 0):
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic!a}. Create it, then join again."
            )

    def _member(self, group: Group, consumer_id: str, topic: TopicName) -> SharedMember:
        if not group.shared and (group.state is not GroupState.EMPTY or group.pending):
            raise PenstockError(
                Reason.INCONSISTENT_GROUP_PROTOCOL,
                f"Group {group.group_id} has Kafka consumers, which assign its partitions themselves; stop them first, or join another group",
            )
        member = group.shared.members.get(consumer_id)
        if member is None:
            if len(group.shared) >= self._settings.members_max:
                raise PenstockError(
                    Reason.GROUP_MAX_SIZE_REACHED,
                    f"Group {group.group_id} has {len(group.shared)} members, which is the limit; join another group",
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
            raise PenstockError(Reason.GROUP_ID_NOT_FOUND, f"There is no group {group_id}; join it first")
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
        self._directory.forget_if_unused(group)
        announce(changes)

    def _drop(self, topic: TopicName, group: Group) -> None:
        groups = self._by_topic[topic]
        del groups[group]
        if not groups:
            del self._by_topic[topic]

    def _settle(self, group: Group) -> None:
        """Set the group's state, which follows from whether it has members, and what its members read."""
        state = GroupState.STABLE if group.shared else GroupState.EMPTY
        if state is not group.state:
            group.enter(state, self._clock.now_ms())
        group.protocol_type = CONSUMER_PROTOCOL_TYPE
        group.protocol = PROTOCOL if group.shared else None
        group.subscribed = frozenset(group.shared.topics)
