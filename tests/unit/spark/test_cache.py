import os
import tempfile

import pytest

from penstock.spark.cache import cache_folder


def test_it_is_the_users_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = cache_folder()
    assert folder == tmp_path / "cache" / "penstock"
    assert folder.is_dir()


def test_it_is_elsewhere_when_the_home_cannot_be_written_to(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_folder() == tmp_path / f"penstock-{os.getuid()}"


def test_a_folder_that_others_may_write_to_is_not_trusted(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock").chmod(0o777)
    assert cache_folder().parent == tmp_path / "temporary"


def test_a_link_is_not_trusted(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "penstock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="set XDG_CACHE_HOME"):
        cache_folder()
