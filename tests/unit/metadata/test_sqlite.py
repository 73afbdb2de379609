"""What only the store on disk can get wrong: crashes, damage, other programs' files."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Event, Put
from penstock.metadata.sqlite import LAYOUT_VERSION, SqliteStore

WRITER = """
import asyncio, sys
from penstock.metadata.port import Put
from penstock.metadata.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    count = 0
    while True:
        await store.txn([], [Put(f"a/{count}", b"x" * 100), Put(f"b/{count}", b"")])
        count += 1
        print(count, flush=True)

asyncio.run(main())
"""


async def refusal(path: Path) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await SqliteStore.open(str(path))
    assert caught.value.reason is Reason.STORAGE_ERROR
    assert str(path) in caught.value.text
    return caught.value


async def test_what_was_put_is_there_after_a_reopen_with_its_revisions(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.sqlite")
    store = await SqliteStore.open(path)
    await store.txn([], [Put("a", b"1")])
    await store.txn([], [Put("a", b"2")])
    before = await store.range("")
    await store.close()
    store = await SqliteStore.open(path)
    assert await store.range("") == before
    assert (await store.txn([], [Put("b", b"")])).revision == before.revision + 1
    await store.close()


def kill_a_writer(path: Path) -> int:
    """Run a writer on the store and kill it after some transactions; how many of them it was told are done."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(25):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        return max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])


@pytest.mark.parametrize("attempt", range(3))
async def test_what_was_acknowledged_survives_kill_9_and_no_transaction_is_torn(tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "metadata.sqlite"
    acknowledged = kill_a_writer(path)
    store = await SqliteStore.open(str(path))
    first = {entry.key[2:] for entry in (await store.range("a/")).entries}
    second = {entry.key[2:] for entry in (await store.range("b/")).entries}
    await store.close()
    assert first == second
    assert first >= {str(n) for n in range(acknowledged)}


async def test_transactions_that_wait_together_keep_their_own_compares(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
    results = await asyncio.gather(
        store.txn([], [Put("a", b"1")]),
        store.txn([Compare("a", create_revision=0)], [Put("a", b"2")]),
        store.txn([], [Put("b", b"3")]),
    )
    assert [result.succeeded for result in results] == [True, False, True]
    assert results[2].revision == results[0].revision + 1
    await store.close()


async def test_calls_made_before_close_are_answered(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
    calls = [asyncio.ensure_future(store.txn([], [Put(f"k{n}", b"")])) for n in range(300)]
    await asyncio.wait(calls, timeout=0)
    await store.close()
    assert all(result.succeeded for result in await asyncio.gather(*calls))


async def test_a_file_that_is_no_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is not a database at all, not even a little" * 100)
    error = await refusal(path)
    assert "damaged" in error.text
    assert "backup" in error.text


async def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = await SqliteStore.open(str(path))
    await store.txn([], [Put(f"topics/{n}", b"x" * 200) for n in range(1000)])
    await store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 5 : 4096 * 8] = b"\xa5" * (4096 * 3)
    path.write_bytes(data)
    assert "damaged" in (await refusal(path)).text


async def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    assert "another program" in (await refusal(path)).text
    assert path.read_bytes() == before


async def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    await (await SqliteStore.open(str(path))).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {LAYOUT_VERSION + 1}")
    database.close()
    assert "newer Penstock" in (await refusal(path)).text


async def test_only_the_own_user_can_read_what_passwords_are_checked_with(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    before = os.umask(0o022)
    try:
        for _ in range(2):
            store = await SqliteStore.open(str(path))
            await store.txn([], [Put("security/users/anna", b"hashed")])
            assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
            await store.close()
            # As an earlier version left it.
            path.chmod(0o644)
    finally:
        os.umask(before)


async def test_a_folder_that_is_not_there_is_a_clear_refusal(tmp_path: Path) -> None:
    assert "Check the disk" in (await refusal(tmp_path / "absent" / "metadata.sqlite")).text


async def test_a_failed_commit_reaches_every_caller_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.metadata.sqlite.METADATA_BUSY_MS_MAX", 0)
    path = str(tmp_path / "metadata.sqlite")
    store = await SqliteStore.open(path)
    heard: list[list[Event]] = []
    store.subscribe("", heard.append)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    results = await asyncio.gather(*(store.txn([], [Put(f"k{n}", b"")]) for n in range(3)), return_exceptions=True)
    assert all(isinstance(result, PenstockError) and "another process" in result.text for result in results)
    other.execute("ROLLBACK")
    other.close()
    assert heard == []
    assert (await store.txn([], [Put("a", b"")])).succeeded
    await store.close()


async def test_commits_are_synced(tmp_path: Path) -> None:
    # The promise over power loss rests on these two settings.
    store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
    settings = [await store._submit(_pragma(name)) for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]
    await store.close()


def _pragma(name: str):  # type: ignore[no-untyped-def]
    from penstock.metadata.sqlite import _StoreCall

    return _StoreCall(lambda database: (database._connection.execute(f"PRAGMA {name}").fetchone()[0], []), writes=False)
