import ctypes
import errno
import os
import resource
from typing import Never

import pytest

from penstock.runtime.disk import IOV_MAX, RealDisk


@pytest.fixture
def disk():
    return RealDisk()


def test_what_was_written_is_read_back(disk, tmp_path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.pwritev((b"abc", bytearray(b"def"), memoryview(b"ghi")), 2) == 9
    assert file.pread(100, 0) == b"\0\0abcdefghi"
    assert file.pread(3, 5) == b"def"
    assert file.pread(3, 100) == b""
    assert file.size() == 11
    file.truncate(4)
    assert file.pread(100, 0) == b"\0\0ab"
    file.sync()
    file.close()
    file.close()


def test_more_buffers_than_the_kernel_takes_at_once_are_all_written(disk, tmp_path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    buffers = [bytes([number % 251]) * (number % 5) for number in range(3 * IOV_MAX + 7)]
    total = sum(map(len, buffers))
    assert file.pwritev(buffers, 3) == total
    assert file.pread(total + 10, 3) == b"".join(buffers)
    file.close()


def test_a_write_that_the_kernel_cuts_short_is_finished(disk, tmp_path, monkeypatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [b"".join(buffers)[:5]], at))
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.pwritev((b"abc", b"", b"defghij", b"klmnopq"), 1) == 17
    assert file.pread(100, 1) == b"abcdefghijklmnopq"
    file.close()


def test_a_read_that_the_kernel_cuts_short_is_finished(disk, tmp_path, monkeypatch) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.pwritev((b"abcdefghij",), 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 3), at))
    assert file.pread(8, 1) == b"bcdefghi"
    assert file.pread(100, 1) == b"bcdefghij"
    file.close()


def test_a_file_over_the_process_limit_is_refused_with_an_error_not_a_signal(disk, tmp_path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = disk.open(str(tmp_path / "f"), create=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            file.pwritev((b"x" * 2000,), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.EFBIG
    assert file.size() == 1000
    file.close()


def test_no_descriptor_is_inherited_by_children(disk, tmp_path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    assert not os.get_inheritable(file.fileno())
    file.close()


def test_an_absent_file_is_only_made_on_request(disk, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "f"))
    disk.open(str(tmp_path / "f"), create=True).close()
    assert disk.exists(str(tmp_path / "f"))
    assert disk.size(str(tmp_path / "f")) == 0


def test_what_may_not_be_written_can_still_be_read(disk, tmp_path, monkeypatch) -> None:
    path = str(tmp_path / "f")
    disk.write_atomic(path, b"content")
    real = os.open

    def read_only(path, flags, mode=0o777):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "read-only")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    file = disk.open(path)
    assert file.pread(100, 0) == b"content"
    with pytest.raises(OSError, match="descriptor"):
        file.pwritev((b"x",), 0)
    file.close()


@pytest.mark.parametrize("sync", [True, False])
def test_an_atomic_write_replaces_the_whole_file_and_leaves_nothing_beside_it(disk, tmp_path, sync) -> None:
    path = str(tmp_path / "f")
    disk.write_atomic(path, b"a long first content", sync=sync)
    disk.write_atomic(path, b"short", sync=sync)
    assert disk.read_bytes(path) == b"short"
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_an_atomic_write_that_fails_leaves_the_old_content(disk, tmp_path, monkeypatch) -> None:
    path = str(tmp_path / "f")
    disk.write_atomic(path, b"old")

    def refuse(fd) -> Never:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="broken"):
        disk.write_atomic(path, b"new")
    assert disk.read_bytes(path) == b"old"
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_directories_are_made_with_their_parents_and_say_who_got_a_name(disk, tmp_path) -> None:
    root = str(tmp_path)
    assert disk.make_dirs(f"{root}/a/b/c", sync=False) == [root, f"{root}/a", f"{root}/a/b"]
    assert disk.make_dirs(f"{root}/a/b/c") == []
    assert disk.listdir(f"{root}/a") == ["b"]
    assert disk.listdir(f"{root}/missing") == []
    disk.sync_dir(f"{root}/a")


def test_names_are_renamed_and_removed(disk, tmp_path) -> None:
    root = str(tmp_path)
    disk.write_atomic(f"{root}/one", b"1")
    disk.write_atomic(f"{root}/two", b"2")
    disk.rename(f"{root}/one", f"{root}/two")
    assert disk.read_bytes(f"{root}/two") == b"1"
    disk.remove(f"{root}/two")
    disk.remove(f"{root}/two")
    disk.make_dirs(f"{root}/d/e")
    disk.remove_tree(f"{root}/d")
    disk.remove_tree(f"{root}/d")
    assert disk.listdir(root) == []


def test_free_room_is_told(disk, tmp_path) -> None:
    assert disk.free_bytes(str(tmp_path)) > 0


def test_all_files_are_synced_at_once_where_the_system_can(disk, tmp_path) -> None:
    disk.write_atomic(str(tmp_path / "f"), b"x", sync=False)
    assert disk.sync_all(str(tmp_path)) == hasattr(ctypes.CDLL(None), "syncfs")
    assert not disk.sync_all(str(tmp_path / "absent"))
