"""Statistics of topics and groups, over HTTP.

Fields that a later broker adds to its answers are ignored. None is what the
broker does not know without opening many logs.
"""

from penstock.client.http import HttpClient, v1_path
from penstock.operations.groups import GroupStatus
from penstock.operations.topics import TopicStats


class Numbers(HttpClient):
    """Ask one broker. Use it in a ``with`` statement."""

    def topic(self, name: str) -> TopicStats:
        """How a topic stands."""
        return self._http.get(v1_path("topics", name, "stats"), TopicStats)

    def group(self, group: str) -> GroupStatus:
        """How a group stands."""
        return self._http.get(v1_path("groups", group), GroupStatus)
