"""Topics whose records lie on this node and that the cluster does not know: they were deleted while the node was away, or the store was restored.

Their files are removed only if the store says that the topic was deleted (``deleted/<id>``), at the second look, a round of housekeeping apart. What is merely
unknown stays, and is spoken of: a store that was restored from a snapshot has forgotten the topics that were made since, and the records here are all that is left of them.
"""

from collections.abc import Callable
from uuid import UUID

from penstock.core.cluster.observed import is_observed_id
from penstock.core.topics.records import DELETED_PREFIX, decode_deleted
from penstock.core.topics.topics import Topics
from penstock.errors import PenstockError, Reason
from penstock.log.manager import TOPICS, LogManager
from penstock.metadata.port import MetadataStore
from penstock.ports import Report


class Strays:
    """What is unknown now, and was a round ago."""

    def __init__(
        self,
        logs: LogManager,
        topics: Topics,
        store: MetadataStore,
        trash: Callable[[UUID], None],
        report: Report,
    ) -> None:
        self._logs = logs
        self._topics = topics
        self._store = store
        self._trash = trash
        self._report = report
        self._unknown: frozenset[UUID] = frozenset()
        self._spoken_of: set[UUID] = set()

    def check(self, data_dir: str) -> None:
        """STORAGE_ERROR when there are records here and the cluster knows no topic at all."""
        found = [topic_id for topic_id in self._logs.topic_ids() if not is_observed_id(topic_id)]
        if found and not len(self._topics):
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{data_dir} contains the records of {len(found)} topics, but the cluster's metadata is empty. Restore etcd from a snapshot, or check "
                "--cluster and --etcd. To start over without these records, use another --data-dir.",
            )

    async def sweep(self) -> None:
        """Remove what was unknown a round ago already."""
        unknown = frozenset(
            topic_id
            for topic_id in self._logs.topic_ids()
            if self._topics.get_by_id(topic_id) is None and not is_observed_id(topic_id)
        )
        before, self._unknown = self._unknown, unknown
        due = unknown & before
        if not due:
            return
        try:
            entries = (await self._store.range(DELETED_PREFIX)).entries
        except PenstockError:
            # The store is away: there is another round.
            return
        deleted = {decode_deleted(entry)[0] for entry in entries}
        for topic_id in sorted(due):
            if topic_id in deleted:
                self._report(f"topic {topic_id} is deleted: removing its files")
                self._trash(topic_id)
            elif topic_id not in self._spoken_of:
                self._spoken_of.add(topic_id)
                self._report(
                    f"topic {topic_id} has records here but does not exist in the cluster; they are kept. If etcd was restored, restore a later snapshot; if the "
                    f"topic was deleted long ago, remove {self._logs.data_dir}/{TOPICS}/{topic_id.hex}"
                )
