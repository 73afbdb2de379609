"""A data directory has one owner, and is not taken for another node's or another version's."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.clock import SystemEntropy
from penstock.runtime.data_dir import DataDir, DataDirError, NotThisNodesError
from penstock.runtime.disk import RealDisk


def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    first = DataDir(str(tmp_path))
    first.own()
    with pytest.raises(DataDirError, match=r"in use by process \d+"):
        DataDir(str(tmp_path)).own()
    first.release()
    again = DataDir(str(tmp_path))
    again.own()
    again.release()


def test_the_cluster_id_is_kept(tmp_path: Path) -> None:
    data_dir = DataDir(str(tmp_path))
    made = data_dir.identify(RealDisk(), SystemEntropy(), 1)
    assert DataDir(str(tmp_path)).identify(RealDisk(), SystemEntropy(), 1) == made


def test_the_data_of_another_node_is_refused(tmp_path: Path) -> None:
    DataDir(str(tmp_path)).identify(RealDisk(), SystemEntropy(), 1)
    with pytest.raises(DataDirError, match="belongs to node 1, not 2"):
        DataDir(str(tmp_path)).identify(RealDisk(), SystemEntropy(), 2)


def test_a_lone_brokers_data_under_another_number_is_told_that_no_number_brings_it_into_a_cluster(
    tmp_path: Path,
) -> None:
    disk, entropy = RealDisk(), SystemEntropy()
    alone = DataDir(str(tmp_path)).identify(disk, entropy, 1)
    with pytest.raises(
        NotThisNodesError, match=r"single broker .*first node of a new cluster.*empty --data-dir for node 2"
    ):
        DataDir(str(tmp_path)).identify(disk, entropy, 2, cluster="blue")
    DataDir(str(tmp_path)).join(disk, entropy, alone, "blue", "id-1")
    with pytest.raises(NotThisNodesError, match="--node-id 1"):
        DataDir(str(tmp_path)).identify(disk, entropy, 2, cluster="blue")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"format_version": 99, "node_id": 1, "cluster_id": "x"}')
    with pytest.raises(DataDirError, match="format 99"):
        DataDir(str(tmp_path)).identify(RealDisk(), SystemEntropy(), 1)


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    with pytest.raises(DataDirError, match="cannot be read"):
        DataDir(str(tmp_path)).identify(RealDisk(), SystemEntropy(), 1)


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="--data-dir"):
        DataDir(str(tmp_path / "file" / "data")).own()


def test_a_directory_gets_an_id_once_and_is_alone_still(tmp_path: Path) -> None:
    data_dir, disk, entropy = DataDir(str(tmp_path)), RealDisk(), SystemEntropy()
    named = data_dir.name(disk, entropy, data_dir.identify(disk, entropy, 1))
    again = DataDir(str(tmp_path)).identify(disk, entropy, 1)
    assert again == named == data_dir.name(disk, entropy, again)
    assert len(named.directory) == 32
    data_dir.stay_alone(again)


def test_a_directory_of_a_cluster_is_that_clusters_alone(tmp_path: Path) -> None:
    data_dir, disk, entropy = DataDir(str(tmp_path)), RealDisk(), SystemEntropy()
    named = data_dir.name(disk, entropy, data_dir.identify(disk, entropy, 1))
    joined = data_dir.join(disk, entropy, named, "blue", "id-1")
    assert (joined.cluster, joined.cluster_id, joined.directory) == ("blue", "id-1", named.directory)
    assert data_dir.join(disk, entropy, data_dir.identify(disk, entropy, 1), "blue", "id-1") == joined
    for cluster, cluster_id in (("green", "id-1"), ("blue", "id-2")):
        with pytest.raises(DataDirError, match=r"belongs to cluster blue .*--cluster"):
            data_dir.join(disk, entropy, joined, cluster, cluster_id)
    with pytest.raises(DataDirError, match="--cluster blue"):
        data_dir.stay_alone(joined)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("usual_umask")
def test_others_cannot_enter_what_the_broker_makes(tmp_path: Path) -> None:
    data_dir = DataDir(str(tmp_path / "parent" / "data"))
    data_dir.own()
    made = Path(data_dir.path)
    assert (mode(made.parent), mode(made), mode(made / "lock")) == (0o755, 0o700, 0o640)
    assert not data_dir.exposed
    data_dir.release()


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(("chosen", "is_exposed"), [(0o755, True), (0o711, True), (0o750, False), (0o700, False)])
def test_a_directory_that_exists_keeps_its_mode_and_is_reported_if_others_can_enter_it(
    tmp_path: Path, chosen: int, is_exposed: bool
) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(chosen)
    data_dir = DataDir(str(path))
    data_dir.own()
    assert mode(path) == chosen
    assert (f"chmod 700 {path}" in data_dir.exposed) is is_exposed
    data_dir.release()
