"""Topics: list, create, describe and delete them, and their statistics."""

from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.core.operations.handling import Cancel, Done, answers, begins, merges, works
from penstock.core.operations.rights import may_describe_topic
from penstock.core.security.access import Caller
from penstock.core.stats import summed_stats, topic_stats
from penstock.core.topics.names import is_staging
from penstock.core.topics.topics import UNSET, NewTopic, Topic
from penstock.operations import topics
from penstock.types import Gateway, NodeId

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def described(topic: Topic) -> topics.TopicDescription:
    """A topic, as callers see it."""
    return topics.TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        retention_ms=topic.config.retention_ms,
        retention_bytes=topic.config.retention_bytes,
        created_ms=topic.created_ms,
        updated_ms=topic.updated_ms,
        configs=dict(topic.overrides),
    )


@answers(topics.ListTopics)
def list_topics(broker: "Broker", _: topics.ListTopics, caller: Caller) -> tuple[topics.TopicDescription, ...]:
    """By name."""
    return tuple(
        described(topic)
        for topic in broker.topics
        if not topic.internal and may_describe_topic(broker, caller, topic.name)
    )


@answers(topics.ListTopicNames)
def list_topic_names(broker: "Broker", asked: topics.ListTopicNames, caller: Caller) -> tuple[str, ...]:
    """Topics in which sinks stage their records are left out."""
    names = (
        topic.name
        for topic in broker.topics.iterate_from(asked.start)
        if not is_staging(topic.name) and may_describe_topic(broker, caller, topic.name)
    )
    return tuple(islice(names, asked.count_max))


@answers(topics.FindTopic)
def find_topic(broker: "Broker", asked: topics.FindTopic, _: Caller) -> UUID:
    """From the metadata that every node has."""
    return broker.topics.require_named(asked.topic).topic_id


@works(topics.CreateTopic)
async def create_topic(broker: "Broker", asked: topics.CreateTopic, caller: Caller) -> topics.TopicDescription:
    """Defaults are used only for a new topic: they cannot conflict with an existing one."""
    partitions, replication_factor, configs = asked.partitions, asked.replication_factor, asked.configs
    if asked.topic not in broker.topics:
        partitions = asked.default_partitions if partitions is None else partitions
        replication_factor = asked.default_replication_factor if replication_factor is None else replication_factor
        configs = {**asked.default_configs, **configs}
    new = NewTopic(
        asked.topic,
        UNSET if partitions is None else partitions,
        UNSET if replication_factor is None else replication_factor,
        configs,
        asked.assignments,
    )
    count = 0
    if asked.topic not in broker.topics and not asked.validate_only:
        count = len(asked.assignments) or partitions or broker.settings.topics.partitions
    with broker.quotas.mutating(caller, count, is_refusable=not asked.over_quota):
        created = await broker.topics.create(new, exist_ok=not asked.must_be_new, validate_only=asked.validate_only)
    return described(created)


@works(topics.AddPartitions)
async def add_partitions(broker: "Broker", asked: topics.AddPartitions, caller: Caller) -> None:
    """Returns when the partitions are there."""
    found = broker.topics.require(asked.topic)
    count = 0 if asked.validate_only else max(asked.count - found.partition_count, 0)
    with broker.quotas.mutating(caller, count, is_refusable=not asked.over_quota):
        await broker.topics.add_partitions(
            asked.topic, asked.count, asked.assignments, validate_only=asked.validate_only
        )


@works(topics.DeleteTopic)
async def delete_topic(broker: "Broker", asked: topics.DeleteTopic, caller: Caller) -> str:
    """Returns its name."""
    found = broker.topics.require(asked.topic)
    with broker.quotas.mutating(caller, found.partition_count, is_refusable=not asked.over_quota):
        return (await broker.topics.delete(asked.topic)).name


@answers(topics.DescribeTopic)
def describe_topic(broker: "Broker", asked: topics.DescribeTopic, _: Caller) -> topics.TopicDetails:
    """From the metadata that every node has."""
    topic = broker.topics.require(asked.topic)
    partitions = tuple(
        topics.PartitionDescription(index, record.leader, tuple(record.replicas))
        for index, record in enumerate(broker.topics.partitions(topic))
    )
    return topics.TopicDetails(described(topic), partitions)


@begins(topics.DescribePartition)
def describe_partition(
    broker: "Broker", asked: topics.DescribePartition, _: Caller, done: Done[topics.PartitionOffsets]
) -> Cancel | None:
    """Waits for the commit of records that were acknowledged before the call."""
    partition = broker.partition(asked.topic, asked.partition)

    def settled() -> None:
        done(topics.PartitionOffsets(partition.log.start_offset, partition.high_watermark))

    return broker.settling.wait((partition,), settled)


@answers(topics.DescribeTopicStats)
def describe_topic_stats(broker: "Broker", asked: topics.DescribeTopicStats, _: Caller) -> topics.TopicStats:
    """What this node knows, and the traffic through it."""
    return topic_stats(broker, asked.topic)


@merges(topics.DescribeTopicStats)
def merge_topic_stats(broker: "Broker", by_node: dict[int, topics.TopicStats]) -> topics.TopicStats:
    """The statistics of each partition from its leader, and the sum of the traffic."""
    own = by_node[broker.node_id]

    def by_leader(known: topics.PartitionStats) -> topics.PartitionStats:
        found = by_node.get(NodeId(known.leader), own).partitions
        return found[known.partition] if known.partition < len(found) else known

    flows: dict[str, topics.FlowStats] = {}
    for stats in by_node.values():
        for flow in stats.flows:
            known = flows.get(flow.gateway)
            flows[flow.gateway] = flow if known is None else _sum(known, flow)
    rates = [
        sum(each)
        for each in zip(
            *(
                (
                    stats.records_in_per_second,
                    stats.bytes_in_per_second,
                    stats.records_out_per_second,
                    stats.bytes_out_per_second,
                )
                for stats in by_node.values()
            ),
            strict=True,
        )
    ]
    topic = broker.topics.require(own.topic)
    in_order = [flows[gateway.value] for gateway in Gateway if gateway.value in flows]
    return summed_stats(topic, [by_leader(known) for known in own.partitions], in_order, rates)


def _sum(one: topics.FlowStats, other: topics.FlowStats) -> topics.FlowStats:
    return topics.FlowStats(
        one.gateway,
        one.records_in + other.records_in,
        one.bytes_in + other.bytes_in,
        one.records_out + other.records_out,
        one.bytes_out + other.bytes_out,
    )
