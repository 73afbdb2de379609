"""Files with secrets: those that others can read are refused, and no error shows a secret."""

import os
from pathlib import Path

import pytest

from penstock.secret_files import SECRET_BYTES_MAX, read_secret


def secret(folder: Path, mode: int, content: bytes = b"s3cret") -> str:
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_alone_is_read(tmp_path: Path, mode: int) -> None:
    assert read_secret(secret(tmp_path, mode)) == b"s3cret"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o622])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path, mode)
    with pytest.raises(ValueError, match=f"chmod 600 {path}") as refused:
        read_secret(path)
    assert "s3cret" not in str(refused.value)


def test_the_group_may_read_a_file_of_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path, 0o640)
    of_root = os.stat(path)
    for owner, is_read in ((0, True), (1000, False)):
        found = os.stat_result([*of_root[:4], owner, *of_root[5:]])
        monkeypatch.setattr(os, "fstat", lambda _, found=found: found)
        if is_read:
            assert read_secret(path) == b"s3cret"
        else:
            with pytest.raises(ValueError, match="Other users can read"):
                read_secret(path)


def test_a_pipe_is_read_whatever_its_mode_is() -> None:
    reader, writer = os.pipe()
    try:
        os.fchmod(reader, 0o644)
        os.write(writer, b"s3cret")
        os.close(writer)
        assert read_secret(f"/dev/fd/{reader}") == b"s3cret"
    finally:
        os.close(reader)


def test_a_file_that_is_missing_or_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Cannot read /absent: no such file"):
        read_secret("/absent")
    with pytest.raises(ValueError, match="has more than"):
        read_secret(secret(tmp_path, 0o600, bytes(SECRET_BYTES_MAX + 1)))
