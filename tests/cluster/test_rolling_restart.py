"""A restart of every node, one after the other, under load: nobody is refused for good, and nothing is lost."""

import pytest

from tests.cluster.load import Load
from tests.support.cluster_processes import ClusterProcesses


@pytest.mark.timeout(300)
def test_a_rolling_restart_fails_no_write_and_loses_nothing(tmp_path, etcd):
    with ClusterProcesses(tmp_path, etcd.urls, gateways=False) as cluster:
        load = Load(cluster)
        for node in cluster.nodes.values():
            load.go_on(100, 10)
            assert node.stop() == 0
            # It led nothing any more when it went.
            assert all(
                partition.leader not in (-1, node.node_id)
                for topic in cluster.describe().topics.values()
                for partition in topic.partitions.values()
            )
            load.go_on(100, 10)
            node.start()
            cluster.wait_until_in_sync()
        load.finish()
