"""A file per Kafka API, named by its key. A handler translates a request into calls of the core, and nothing more.

``HANDLERS`` is the whole truth about what is served: ApiVersions answers from it.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.gateways.kafka.handlers import (
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k29_describe_acls,
    k32_describe_configs,
    k33_alter_configs,
    k34_alter_replica_log_dirs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k42_delete_groups,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k47_offset_delete,
    k55_describe_quorum,
    k60_describe_cluster,
    k68_consumer_group_heartbeat,
    k74_list_config_resources,
    k75_describe_topic_partitions,
)
from penstock.wire.kafka.apis import ApiKey


def _produce(*_: Any) -> Any:
    """Stands in the table so that the API is listed; the connection hands every produce to its lane."""
    raise AssertionError("produce goes through the connection's lane")


HANDLERS: Final[dict[ApiKey, Callable[[Any, Any], Any]]] = {
    ApiKey.PRODUCE: _produce,
    **{
        module.KEY: module.handle
        for module in (
            k01_fetch,
            k02_list_offsets,
            k03_metadata,
            k08_offset_commit,
            k09_offset_fetch,
            k10_find_coordinator,
            k11_join_group,
            k12_heartbeat,
            k13_leave_group,
            k14_sync_group,
            k15_describe_groups,
            k16_list_groups,
            k18_api_versions,
            k19_create_topics,
            k20_delete_topics,
            k21_delete_records,
            k22_init_producer_id,
            k23_offset_for_leader_epoch,
            k29_describe_acls,
            k32_describe_configs,
            k33_alter_configs,
            k34_alter_replica_log_dirs,
            k35_describe_log_dirs,
            k37_create_partitions,
            k42_delete_groups,
            k43_elect_leaders,
            k44_incremental_alter_configs,
            k45_alter_partition_reassignments,
            k46_list_partition_reassignments,
            k47_offset_delete,
            k55_describe_quorum,
            k60_describe_cluster,
            k68_consumer_group_heartbeat,
            k74_list_config_resources,
            k75_describe_topic_partitions,
        )
    },
}
