"""Stray topics: they have records on this node, but do not exist in the cluster. They were deleted while it was down, or the store was restored.

Their files are removed only if the store has the deletion (``deleted/<id>``), in the second of two rounds of housekeeping that find the
topic missing. Otherwise they are kept and reported: a store restored from a snapshot lacks the topics that were created later, and then
these records are all that is left of them.
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
    """Finds stray topics."""

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
        self._reported: set[UUID] = set()

    def check(self, data_dir: str) -> None:
        """STORAGE_ERROR if there are records here, but the cluster has no topic at all."""
        found = [topic_id for topic_id in self._logs.topic_ids() if not is_observed_id(topic_id)]
        if found and not len(self._topics):
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{data_dir} contains the records of {len(found)} topics, but the cluster's metadata is empty. Restore etcd from a snapshot, or check "
                "--cluster and --etcd. To start over without these records, use another --data-dir.",
            )

    async def sweep(self) -> None:
        """Remove topics that were deleted, and report others that do not exist."""
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
            # The store is unavailable: try again in the next round.
            return
        deleted = {decode_deleted(entry)[0] for entry in entries}
        for topic_id in sorted(due):
            if topic_id in deleted:
                self._report(f"topic {topic_id} is deleted: removing its files")
                self._trash(topic_id)
            elif topic_id not in self._reported:
                self._reported.add(topic_id)
                self._report(
                    f"topic {topic_id} has records here but does not exist in the cluster; they are kept. If etcd was restored, restore a later snapshot; if the "
                    f"topic was deleted long ago, remove {self._logs.data_dir}/{TOPICS}/{topic_id.hex}"
                )
