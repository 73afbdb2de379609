import base64
import os

import pytest

from penstock.encryption import crypto
from penstock.encryption.keys import ENVIRONMENT, MasterKeys, load_keys, new_key, parse_keys
from penstock.errors import PenstockError, Reason
from tests.support.encrypted import KEY_TEXT, KEYS


def write(path, text, mode=0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_what_a_key_wraps_it_unwraps_and_no_other_does() -> None:
    wrapped = KEYS.wrap(b"k" * 32, b"here")
    assert b"k" * 4 not in wrapped
    assert KEYS.unwrap(KEYS.current, wrapped, b"here") == b"k" * 32
    with pytest.raises(crypto.WrongKeyError):
        KEYS.unwrap(KEYS.current, wrapped, b"there")
    other = MasterKeys([bytes(32)])
    with pytest.raises(KeyError, match=KEYS.current):
        other.unwrap(KEYS.current, wrapped, b"here")


def test_a_key_file_has_the_current_key_first_and_older_ones_after_it(tmp_path) -> None:
    old, new = new_key(), new_key()
    path = write(tmp_path / "keys", f"# rotated in May\n{new}\n\n{old}\n")
    keys = load_keys(path, {})
    assert isinstance(keys, MasterKeys)
    assert keys.current == crypto.fingerprint(base64.b64decode(new))
    assert crypto.fingerprint(base64.b64decode(old)) in keys.ids


def test_a_key_can_come_from_the_environment_and_the_file_takes_precedence(tmp_path) -> None:
    assert load_keys("", {}) is None
    from_environment = load_keys("", {ENVIRONMENT: f"{KEY_TEXT},{new_key()}"})
    assert from_environment is not None
    assert from_environment.current == KEYS.current
    path = write(tmp_path / "keys", KEY_TEXT)
    both = load_keys(path, {ENVIRONMENT: new_key()})
    assert both is not None
    assert both.current == KEYS.current


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602, 0o666])
def test_a_key_file_that_others_can_read_or_change_is_refused(tmp_path, mode) -> None:
    path = write(tmp_path / "keys", KEY_TEXT, mode)
    with pytest.raises(PenstockError, match="chmod 600"):
        load_keys(path, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to root")
def test_the_group_may_read_a_key_file_of_root_and_of_nobody_else(tmp_path) -> None:
    path = write(tmp_path / "keys", KEY_TEXT, 0o640)
    assert load_keys(path, {}) is not None
    os.chown(path, 12345, -1)
    with pytest.raises(PenstockError, match="chmod 600"):
        load_keys(path, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no master key"),
        ("# only a comment", "no master key"),
        ("secretsecret", "Line 1"),
        (KEY_TEXT + "\n" + KEY_TEXT[:-4], "Line 2"),
        ("\n".join([KEY_TEXT] * 65), "limit"),
    ],
)
def test_a_file_that_is_no_key_file_is_refused_without_showing_it(tmp_path, text, words) -> None:
    path = write(tmp_path / "keys", text)
    with pytest.raises(PenstockError, match=words) as refused:
        load_keys(path, {})
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert "secretsecret" not in refused.value.text
    assert KEY_TEXT[:8] not in refused.value.text


@pytest.mark.parametrize(
    "make", [lambda path: path.mkdir(), lambda path: path.write_bytes(bytes(100_000)), lambda _: None]
)
def test_a_directory_a_large_file_and_no_file_are_refused(tmp_path, make) -> None:
    path = tmp_path / "keys"
    make(path)
    if path.exists():
        path.chmod(0o600)
    with pytest.raises(PenstockError, match=r"key file|regular file"):
        load_keys(str(path), {})


def test_no_repr_shows_a_key() -> None:
    assert KEY_TEXT not in repr(KEYS)
    assert repr(bytes(range(32)))[2:-1] not in repr(KEYS)


def test_new_keys_differ_and_can_be_parsed() -> None:
    first, second = new_key(), new_key()
    assert first != second
    assert [len(key) for key in parse_keys(f"{first}\n{second}", "here")] == [32, 32]
