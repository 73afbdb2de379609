"""Files of topics that the cluster does not know: removed after a second look, and only if the cluster says that they are deleted."""

from pathlib import Path
from uuid import UUID

import pytest

from penstock.core.cluster.strays import Strays
from penstock.core.topics.records import DeletedRecord, deleted_key, encode
from penstock.errors import PenstockError, Reason
from penstock.log.manager import LogManager
from penstock.metadata.port import Put
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import RealDisk
from tests.support.agreed import Agreed

STRAY = UUID(int=77)


class Kept:
    """A data folder with the files of one topic that is known and one that is not."""

    def __init__(self, path: Path, agreed: Agreed) -> None:
        self.agreed = agreed
        self.removed: list[UUID] = []
        self.said: list[str] = []
        for topic_id in (UUID(int=1), STRAY):
            (path / "topics" / topic_id.hex / "0").mkdir(parents=True)
        logs = LogManager(RealDisk(), str(path), SystemClock(), self.said.append)
        self.strays = Strays(logs, agreed.topics, agreed.store, self.removed.append, self.said.append)


async def test_a_deleted_topic_goes_at_the_second_look(tmp_path: Path) -> None:
    agreed = await Agreed.make(1)
    await agreed.topic("t", (1,))
    await agreed.store.txn([], [Put(deleted_key(STRAY), encode(DeletedRecord("gone", 1)))])
    kept = Kept(tmp_path, agreed)
    kept.strays.check(str(tmp_path))
    await kept.strays.sweep()
    assert kept.removed == []
    await kept.strays.sweep()
    assert kept.removed == [STRAY]


async def test_a_topic_that_is_only_unknown_stays_and_is_spoken_of_once(tmp_path: Path) -> None:
    agreed = await Agreed.make(1)
    await agreed.topic("t", (1,))
    kept = Kept(tmp_path, agreed)
    for _ in range(4):
        await kept.strays.sweep()
    assert kept.removed == []
    (said,) = kept.said
    assert STRAY.hex in said
    assert "snapshot" in said


async def test_a_node_with_records_does_not_start_in_a_cluster_that_knows_no_topic(tmp_path: Path) -> None:
    kept = Kept(tmp_path, await Agreed.make(1))
    with pytest.raises(PenstockError) as refused:
        kept.strays.check("the-folder")
    assert refused.value.reason is Reason.STORAGE_ERROR
    assert "the-folder" in refused.value.text
    assert "Restore etcd" in refused.value.text
