"""Topics whose records lie on this node and that the cluster does not know: they were deleted while the node was away.

Their files are removed, but not at first sight: only if the topic was unknown twice, a round of housekeeping apart, and the store itself says so again. A store that knows
no topic at all was emptied; then nothing is removed, since the records here may be all that is left.
"""

from collections.abc import Callable
from uuid import UUID

from penstock.core.topic_image import TopicImage
from penstock.core.topic_records import TOPICS_PREFIX, decode_topic
from penstock.errors import PenstockError, Reason
from penstock.log.manager import LogManager
from penstock.metadata.port import MetadataStore
from penstock.ports import Report


class Strays:
    """What is unknown now, and was a round ago."""

    def __init__(
        self,
        logs: LogManager,
        topics: TopicImage,
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

    def check(self, data_dir: str) -> None:
        """STORAGE_ERROR when there are records here and the cluster knows no topic at all."""
        found = self._logs.topic_ids()
        if found and not len(self._topics):
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{data_dir} holds the records of {len(found)} topics, but the cluster's metadata is empty. Restore etcd from a snapshot, or check "
                "--cluster and --etcd. To begin anew without these records, start on another --data-dir.",
            )

    async def sweep(self) -> None:
        """Remove what was unknown a round ago already."""
        unknown = frozenset(topic_id for topic_id in self._logs.topic_ids() if self._topics.get_by_id(topic_id) is None)
        before, self._unknown = self._unknown, unknown
        due = unknown & before
        if not due:
            return
        known = {decode_topic(entry).id for entry in (await self._store.range(TOPICS_PREFIX)).entries}
        if not known:
            self._report("the cluster's metadata is empty; the records here stay. Restore etcd from a snapshot")
            return
        for topic_id in sorted(due - known):
            self._report(f"topic {topic_id} is deleted: removing its files")
            self._trash(topic_id)
