"""The status of topics, groups and the cluster, and draining nodes, over HTTP.

Fields that a later broker adds to its answers are ignored. None means that the broker would have to open many logs to know the value.
"""

from penstock.client.http import HttpClient, v1_path
from penstock.operations.cluster import ClusterDescription, NodeDrain, SecretRotation
from penstock.operations.groups import GroupStatus
from penstock.operations.topics import TopicStats


class StatusClient(HttpClient):
    """Reads the status from one node. Use it in a ``with`` statement."""

    def topic(self, name: str) -> TopicStats:
        """The statistics of a topic."""
        return self._http.get(v1_path("topics", name, "stats"), TopicStats)

    def group(self, group: str) -> GroupStatus:
        """The members, offsets and lag of a group."""
        return self._http.get(v1_path("groups", group), GroupStatus)

    def cluster(self) -> ClusterDescription:
        """The cluster, as this node sees it."""
        return self._http.get(v1_path("cluster"), ClusterDescription)

    def drain(self, node: int) -> NodeDrain:
        """Start to move the leaders and replicas of a node to other nodes."""
        return self._http.post(v1_path("cluster", "drain", str(node)), {}, NodeDrain)

    def rotate_secret(self) -> SecretRotation:
        """Replace the secret with which nodes authenticate to each other."""
        return self._http.post(v1_path("cluster", "secret", "rotate"), {}, SecretRotation)

    def undrain(self, node: int) -> None:
        """Use a node again; a node that is down and has no replicas is forgotten."""
        self._http.delete(v1_path("cluster", "drain", str(node)))
