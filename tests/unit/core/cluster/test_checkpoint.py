"""What was committed, over a restart."""

from pathlib import Path
from uuid import UUID

import pytest

from penstock.core.cluster.checkpoint import load, save
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.runtime.disk import RealDisk

MARKS = {
    TopicIdPartition(UUID(int=1), 0): 17,
    TopicIdPartition(UUID(int=1), 12): 0,
    TopicIdPartition(UUID(int=9), 3): 2**40,
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "marks")
    save(RealDisk(), path, MARKS)
    assert load(RealDisk(), path, pytest.fail) == MARKS
    save(RealDisk(), path, {})
    assert load(RealDisk(), path, pytest.fail) == {}


def test_a_new_directory_has_none(tmp_path: Path) -> None:
    assert load(RealDisk(), str(tmp_path / "marks"), pytest.fail) == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data.replace(b" 17\n", b" 18\n"), lambda _: b"\xff"]
)
def test_a_damaged_file_is_not_believed_and_is_spoken_of(tmp_path: Path, damage) -> None:
    path = tmp_path / "marks"
    save(RealDisk(), str(path), MARKS)
    path.write_bytes(damage(path.read_bytes()))
    said: list[str] = []
    assert load(RealDisk(), str(path), said.append) == {}
    assert len(said) == 1
