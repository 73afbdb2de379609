"""The model of the file system whose power can be cut: what was synced survives every cut, and anything else may not."""

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.powerfs.state import FileNode, State
from tests.support.powerfs.survival import PAGE, survivors

SEEDS = range(200)


def sync(state: State, path: str) -> None:
    state.end_sync(state.find(path), state.begin_sync())


def content(state: State, path: str) -> bytes | None:
    """What a file holds; None when there is no such name."""
    try:
        return bytes(state.file(state.find(path)).content)
    except OSError as error:
        assert error.errno == errno.ENOENT
        return None


def outcomes(state: State, path: str) -> set[bytes | None]:
    return {content(survivors(state, Random(seed)), path) for seed in SEEDS}


def names(state: State, path: str = "/") -> tuple[str, ...]:
    return tuple(sorted(state.directory(state.find(path)).content))


def with_file(data: bytes) -> State:
    """A state with one file, synced with its name."""
    state = State()
    state.write(state.create("/f", 0o640), data, 0)
    sync(state, "/f")
    sync(state, "/")
    return state


# Files.


def test_a_synced_file_with_a_synced_name_survives_every_cut() -> None:
    assert outcomes(with_file(b"kept"), "/f") == {b"kept"}


def test_a_synced_file_whose_name_is_not_synced_may_be_gone() -> None:
    state = State()
    state.write(state.create("/f", 0o640), b"kept", 0)
    sync(state, "/f")
    assert outcomes(state, "/f") == {b"kept", None}


def test_an_unsynced_file_whose_name_is_synced_may_be_empty_torn_or_whole() -> None:
    state = State()
    state.write(state.create("/f", 0o640), b"ab", 0)
    sync(state, "/")
    assert {b"", b"a", b"ab", b"\0\0"} <= outcomes(state, "/f")


def test_unsynced_pages_survive_in_any_combination() -> None:
    state = with_file(bytes(3 * PAGE))
    file = state.find("/f")
    for page in range(3):
        state.write(file, bytes([page + 1]) * PAGE, page * PAGE)
    found = {tuple(data[page * PAGE] for page in range(3)) for data in outcomes(state, "/f") if data is not None}
    assert len(found) == 8


def test_bytes_beside_an_unsynced_write_are_never_touched() -> None:
    state = with_file(b"0123456789")
    state.write(state.find("/f"), b"xx", 4)
    assert {(data or b"")[:4] + (data or b"")[6:] for data in outcomes(state, "/f")} == {b"01236789"}


def test_an_unsynced_truncate_may_or_may_not_have_happened() -> None:
    state = with_file(b"0123456789")
    state.truncate(state.find("/f"), 4)
    assert outcomes(state, "/f") == {b"0123", b"0123456789"}


def test_bytes_that_were_cut_off_do_not_come_back_when_the_file_grows_again() -> None:
    state = with_file(b"old old old")
    file = state.find("/f")
    state.truncate(file, 4)
    state.write(file, b"new", 8)
    for seed in range(2000):
        data = content(survivors(state, Random(seed)), "/f") or b""
        assert data == b"old old old" or b"old" not in data[4:], data


def test_bytes_beyond_the_synced_end_may_be_anything() -> None:
    state = with_file(b"ok")
    state.write(state.find("/f"), b"xxxx", 2)
    found = outcomes(state, "/f")
    assert all((data or b"").startswith(b"ok") for data in found)
    assert any(set(data[2:]) - set(b"x\0") for data in found if data is not None)


def test_a_sync_covers_what_was_written_before_it_began_and_no_more() -> None:
    state = with_file(b"a")
    file = state.find("/f")
    state.write(file, b"b", 0)
    covered = state.begin_sync()
    state.write(file, b"c", 0)
    state.end_sync(file, covered)
    assert outcomes(state, "/f") == {b"b", b"c"}


def test_a_sync_that_ends_after_a_later_one_takes_nothing_back() -> None:
    state = with_file(b"a")
    file = state.find("/f")
    state.write(file, b"b", 0)
    first = state.begin_sync()
    state.write(file, b"c", 0)
    second = state.begin_sync()
    state.end_sync(file, second)
    state.end_sync(file, first)
    assert outcomes(state, "/f") == {b"c"}


# Names.


def test_an_unsynced_unlink_may_or_may_not_have_happened() -> None:
    state = with_file(b"kept")
    state.unlink("/f")
    assert outcomes(state, "/f") == {b"kept", None}


def test_a_file_renamed_over_another_without_a_sync_of_the_directory_leaves_the_one_or_the_other() -> None:
    state = with_file(b"old")
    state.write(state.create("/f.tmp", 0o640), b"new", 0)
    sync(state, "/f.tmp")
    state.rename("/f.tmp", "/f")
    assert outcomes(state, "/f") == {b"old", b"new"}
    sync(state, "/")
    assert outcomes(state, "/f") == {b"new"}


def test_a_file_renamed_before_it_was_synced_may_be_empty_under_its_new_name() -> None:
    state = with_file(b"old")
    state.write(state.create("/f.tmp", 0o640), b"new", 0)
    state.rename("/f.tmp", "/f")
    sync(state, "/")
    assert b"" in outcomes(state, "/f")


def test_a_rename_changes_both_names_or_neither() -> None:
    state = with_file(b"kept")
    state.rename("/f", "/g")
    assert {names(survivors(state, Random(seed))) for seed in SEEDS} == {("f",), ("g",)}


def test_unsynced_names_survive_independently_of_each_other() -> None:
    state = State()
    state.create("/a", 0o640)
    state.create("/b", 0o640)
    assert {names(survivors(state, Random(seed))) for seed in SEEDS} == {(), ("a",), ("b",), ("a", "b")}


def test_a_rename_of_a_file_that_did_not_survive_did_not_happen() -> None:
    state = State()
    state.create("/a", 0o640)
    state.rename("/a", "/b")
    state.create("/a", 0o640)
    assert {names(survivors(state, Random(seed))) for seed in range(1000)} == {(), ("a",), ("b",), ("a", "b")}


def test_a_directory_takes_along_what_is_in_it() -> None:
    state = State()
    state.make_directory("/d", 0o755)
    state.write(state.create("/d/f", 0o640), b"kept", 0)
    sync(state, "/d/f")
    sync(state, "/d")
    assert outcomes(state, "/d/f") == {b"kept", None}
    sync(state, "/")
    assert outcomes(state, "/d/f") == {b"kept"}


def test_a_directory_that_comes_back_has_what_was_synced_in_it() -> None:
    state = State()
    state.make_directory("/d", 0o755)
    state.write(state.create("/d/f", 0o640), b"kept", 0)
    for path in ("/d/f", "/d", "/"):
        sync(state, path)
    state.unlink("/d/f")
    state.remove_directory("/d")
    assert {(names(left), names(left, "/d") if names(left) else ()) for left in (survivors(state, Random(s)) for s in SEEDS)} == {
        ((), ()),
        (("d",), ()),
        (("d",), ("f",)),
    }  # fmt: skip


def test_what_survived_a_cut_survives_the_next_one() -> None:
    state = State()
    state.write(state.create("/f", 0o640), b"perhaps", 0)
    for seed in SEEDS:
        left = survivors(state, Random(seed))
        assert outcomes(left, "/f") == {content(left, "/f")}


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda state: state.find("/none"), errno.ENOENT),
        (lambda state: state.find("/f/g"), errno.ENOTDIR),
        (lambda state: state.create("/f", 0o640), errno.EEXIST),
        (lambda state: state.create("/none/f", 0o640), errno.ENOENT),
        (lambda state: state.unlink("/d"), errno.EISDIR),
        (lambda state: state.remove_directory("/d"), errno.ENOTEMPTY),
        (lambda state: state.remove_directory("/f"), errno.ENOTDIR),
        (lambda state: state.rename("/f", "/d"), errno.EISDIR),
        (lambda state: state.rename("/d", "/f"), errno.ENOTDIR),
        (lambda state: state.rename("/f", "/d/f"), errno.EXDEV),
        (lambda state: state.rename("/empty", "/d"), errno.ENOTEMPTY),
    ],
)
def test_errors_are_those_of_the_system_calls(call, code) -> None:
    state = with_file(b"")
    state.make_directory("/d", 0o755)
    state.make_directory("/empty", 0o755)
    state.create("/d/g", 0o640)
    with pytest.raises(OSError, match=r".") as caught:
        call(state)
    assert caught.value.errno == code


# Any history.

WRITES = st.tuples(st.integers(0, 3 * PAGE), st.binary(min_size=1, max_size=2 * PAGE))
CHANGES = st.lists(st.one_of(WRITES, st.tuples(st.integers(0, 3 * PAGE), st.none())), max_size=12)


def make(state: State, file: int, changes: list[tuple[int, bytes | None]]) -> None:
    for position, data in changes:
        if data is None:
            state.truncate(file, position)
        else:
            state.write(file, data, position)


@given(CHANGES, CHANGES, st.integers(0, 2**32))
def test_after_any_history_synced_bytes_change_only_where_they_were_written_again(synced, unsynced, seed) -> None:
    state = with_file(b"")
    file = state.find("/f")
    make(state, file, synced)
    sync(state, "/f")
    durable = bytes(state.file(file).content)
    make(state, file, unsynced)
    left = content(survivors(state, Random(seed)), "/f")
    assert left is not None
    touched = min([len(durable), *(position for position, _ in unsynced)])
    assert left[:touched] == durable[:touched]
    node = state.nodes[file]
    assert isinstance(node, FileNode)
    sizes = {len(durable)}
    size = len(durable)
    for position, data in unsynced:
        size = position if data is None else max(size, position + len(data))
        sizes.add(size)
    assert len(left) <= max(sizes)
    sync(state, "/f")
    assert content(survivors(state, Random(seed)), "/f") == bytes(node.content)
