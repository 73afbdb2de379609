"""The file of the audit log on a real disk."""

import os
import stat
from pathlib import Path

import pytest

from penstock.runtime.audit_file import AuditFile, open_audit_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = open_audit_file(str(path), 1000, 3)
    file.append(b"a\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"a\n"


def test_files_are_rotated_whole_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 100, 3)
    for number in range(10):
        file.append(b"%d" % number * 59 + b"\n")
    file.close()
    assert names(tmp_path) == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = [(tmp_path / name).read_bytes()[:1] for name in names(tmp_path)]
    assert kept == [b"9", b"8", b"7"]


def test_one_file_alone_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 100, 1)
    file.append(b"a" * 90)
    file.append(b"b" * 90)
    file.close()
    assert names(tmp_path) == ["audit.log"]
    assert path.read_bytes() == b"b" * 90


def test_it_continues_after_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"before\n")
    file = AuditFile(str(path), 1000, 3)
    file.append(b"after\n")
    file.close()
    assert path.read_bytes() == b"before\nafter\n"


def test_a_file_that_was_moved_away_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 1000, 3)
    file.append(b"a\n")
    path.rename(tmp_path / "moved")
    file.append(b"b\n")
    file.close()
    assert (tmp_path / "moved").read_bytes() == b"a\n"
    assert path.read_bytes() == b"b\n"


def test_a_failed_append_leaves_no_half_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 1000, 3)
    file.append(b"whole\n")
    real, calls = os.write, 0

    def full(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, bytes(data)[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.append(b"another\n")
    monkeypatch.undo()
    file.append(b"next\n")
    file.close()
    assert path.read_bytes() == b"whole\nnext\n"


def test_a_file_that_cannot_be_written_is_noticed_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        open_audit_file(str(tmp_path / "absent" / "audit.log"), 1000, 3)
