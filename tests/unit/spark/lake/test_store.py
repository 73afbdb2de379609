"""Locations, and the bit of a file system that a lake needs."""

from pathlib import Path

import pytest

from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.store import Store, absolute, local_path_of, open_uri


def test_a_path_becomes_a_uri_that_means_the_same_everywhere(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("lake") == f"file://{tmp_path}/lake"
    assert absolute("/a b/") == "file:///a%20b"
    assert absolute("s3://bucket/lake/") == "s3://bucket/lake"
    assert local_path_of("file:///a%20b") == local_path_of("/a b") == Path("/a b")
    assert local_path_of("s3://bucket/lake") is None


@pytest.mark.parametrize("location", ["", " ", "what://ever/it/is"])
def test_a_location_that_cannot_be_is_refused(location) -> None:
    with pytest.raises(LakeError):
        Store(location)


def test_files_in_a_folder_with_a_space_are_written_moved_and_opened_by_uri(tmp_path) -> None:
    store = Store(str(tmp_path / "a lake"))
    store.write_atomic("x/one", b"1")
    store.move([("x/one", "y/z/two")])
    assert (store.exists("x/one"), store.read("y/z/two"), store.read("nothing")) == (False, b"1", None)
    assert [path for path, _, _ in store.files("y")] == ["y/z/two"]
    with open_uri(store.uri_of("y/z/two")) as file:
        assert file.read() == b"1"
    store.remove(["y/z/two", "y/z/two"])
    store.remove_folder("y")
    store.remove_folder("y")
    assert store.folders("") == ["x"]
