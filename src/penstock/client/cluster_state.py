"""How a cluster stands, and nodes that are to be emptied, over HTTP: what Kafka's protocol has no words for.

Fields that a later node adds to its answers are ignored.
"""

from penstock.client.http import HttpClient, v1_path
from penstock.operations.cluster import ClusterDescription, NodeDrain


class ClusterState(HttpClient):
    """Ask one node, of several the first that answers. Use it in a ``with`` statement."""

    def status(self) -> ClusterDescription:
        """How the cluster stands, as this node knows it."""
        return self._http.get(v1_path("cluster"), ClusterDescription)

    def drain(self, node: int) -> NodeDrain:
        """Let others lead and have what a node does, as far as they can."""
        return self._http.post(v1_path("cluster", "drain", str(node)), {}, NodeDrain)

    def undrain(self, node: int) -> None:
        """Use a node again; one that is down and has nothing is forgotten."""
        self._http.delete(v1_path("cluster", "drain", str(node)))
