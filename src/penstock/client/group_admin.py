"""Administration of consumer groups: members, committed offsets, and resetting offsets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.address import Address
from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.errors import GROUP_ID_NOT_FOUND, check
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.primitives import UUID_ZERO

if TYPE_CHECKING:
    from penstock.wire.kafka.list_groups_generated import ListGroupsResponse

NAMES_VERSION_MAX: Final = 9
"""In later versions, OffsetCommit and OffsetFetch identify topics by id instead of name."""

DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset that a group reads next in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupAdmin:
    """Administers groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def groups(self) -> list[GroupListing]:
        """All groups, by id."""

        def attempt() -> dict[str, GroupListing]:
            # Each attempt requests the nodes again, since one that failed is listed for a while.
            return {
                group.group_id: GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type)
                for node in self._cluster.describe().nodes.values()
                for group in self._list_at(node.address).groups
            }

        found = self._cluster.retry(attempt)
        return [found[name] for name in sorted(found)]

    def _list_at(self, address: Address) -> "ListGroupsResponse":
        from penstock.wire.kafka.list_groups_generated import ListGroupsRequest, ListGroupsResponse

        answer = self._cluster.connection_to(address).call(ListGroupsRequest(), ListGroupsResponse)
        check(answer.error_code, "groups")
        return answer

    def describe(self, group: str) -> GroupDescription:
        """One group; GROUP_ID_NOT_FOUND if it does not exist."""
        from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest, DescribeGroupsResponse

        def attempt() -> GroupDescription:
            answer = self._cluster.coordinator(group).call(
                DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
            )
            found = answer.groups[0]
            check(found.error_code, f"group {group!r}", found.error_message)
            check(GROUP_ID_NOT_FOUND if found.group_state == DEAD else 0, f"group {group!r}")
            members = tuple(
                GroupMember(m.member_id, m.group_instance_id, m.client_id, m.client_host, assigned(m.member_assignment))
                for m in found.members
            )
            return GroupDescription(group, found.group_state, found.protocol_type, found.protocol_data, members)

        return self._cluster.retry(attempt)

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of the group, for the given partitions or for all; partitions without a commit are omitted."""
        from penstock.wire.kafka import offset_fetch_generated as wire

        topics: list[wire.OffsetFetchRequestTopic] | None = None
        grouped: list[wire.OffsetFetchRequestGroupTopic] | None = None
        if partitions is not None:
            wanted = by_topic(partitions)
            topics = [wire.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in wanted.items()]
            grouped = [wire.OffsetFetchRequestGroupTopic(name=t, partition_indexes=p) for t, p in wanted.items()]
        request = wire.OffsetFetchRequest(
            groups=[wire.OffsetFetchRequestGroup(group_id=group, topics=grouped)], group_id=group, topics=topics
        )

        def attempt() -> dict[TopicPartition, CommittedOffset]:
            answer = self._cluster.coordinator(group).call(
                request, wire.OffsetFetchResponse, version_max=NAMES_VERSION_MAX
            )
            check(answer.groups[0].error_code if answer.groups else answer.error_code, f"group {group!r}")
            answered: list[wire.OffsetFetchResponseTopic] | list[wire.OffsetFetchResponseGroupTopic]
            answered = answer.groups[0].topics if answer.groups else answer.topics
            found: dict[TopicPartition, CommittedOffset] = {}
            for topic in answered:
                for part in topic.partitions:
                    check(part.error_code, f"offset of {topic.name}/{part.partition_index} in group {group!r}")
                    if part.committed_offset >= 0:
                        place = (topic.name, part.partition_index)
                        found[place] = CommittedOffset(
                            part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                        )
            return found

        return self._cluster.retry(attempt)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str = "",
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> None:
        """Commit offsets: as a member, or without a generation, for a group that has no members.

        With the ``topic_ids`` of all topics, brokers that support it (Kafka 4.1) refuse a topic that was deleted and created again in the meantime.
        """
        from penstock.wire.kafka import offset_commit_generated as wire

        topics = [
            wire.OffsetCommitRequestTopic(
                name=topic,
                topic_id=UUID_ZERO if topic_ids is None else topic_ids[topic].bytes,
                partitions=[
                    wire.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offsets[topic, partition],
                        committed_metadata=metadata,
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ]
        request = wire.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=topics,
        )

        version_max = NAMES_VERSION_MAX if topic_ids is None else None
        names = {topic.topic_id: topic.name for topic in topics}

        def attempt() -> None:
            answer = self._cluster.coordinator(group).call(request, wire.OffsetCommitResponse, version_max=version_max)
            for topic in answer.topics:
                name = topic.name or names[bytes(topic.topic_id)]
                for part in topic.partitions:
                    check(part.error_code, f"commit of {name}/{part.partition_index} in group {group!r}")

        self._cluster.retry(attempt)

    def delete(self, group: str) -> None:
        """Delete a group without members, including its offsets."""
        from penstock.wire.kafka.delete_groups_generated import DeleteGroupsRequest, DeleteGroupsResponse

        def attempt() -> None:
            answer = self._cluster.coordinator(group).call(
                DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse
            )
            for result in answer.results:
                check(result.error_code, f"group {result.group_id!r}")

        self._cluster.retry(attempt, lost=False)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group for some partitions."""
        from penstock.wire.kafka import offset_delete_generated as wire

        topics = [
            wire.OffsetDeleteRequestTopic(
                name=topic, partitions=[wire.OffsetDeleteRequestPartition(partition_index=p) for p in indexes]
            )
            for topic, indexes in by_topic(partitions).items()
        ]

        def attempt() -> None:
            request = wire.OffsetDeleteRequest(group_id=group, topics=topics)
            answer = self._cluster.coordinator(group).call(request, wire.OffsetDeleteResponse)
            check(answer.error_code, f"group {group!r}")
            for topic in answer.topics:
                for part in topic.partitions:
                    check(part.error_code, f"offset of {topic.name}/{part.partition_index} in group {group!r}")

        self._cluster.retry(attempt)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, as requests list them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment; none if it is empty or not that of a consumer (Connect has another format)."""
    from penstock.wire.kafka.consumer_protocol import decode_assignment

    if not data:
        return ()
    try:
        assignment = decode_assignment(data)
    except ProtocolViolation:
        return ()
    return tuple((item.topic, p) for item in assignment.assigned_partitions for p in item.partitions)
