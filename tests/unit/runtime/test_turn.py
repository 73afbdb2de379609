"""The end of a turn: writes first, then readers, then answers, each once however often it was asked for."""

import asyncio

from penstock.errors import PenstockError, Reason
from penstock.ports import SyncTask
from penstock.runtime.turn import Turn


class Target:
    """Notes what happens to it."""

    def __init__(self, events: list[str], *, fails: bool = False) -> None:
        self._events = events
        self._fails = fails

    def write_pending(self) -> None:
        self._events.append("write")
        if self._fails:
            raise PenstockError(Reason.STORAGE_ERROR)

    def begin_sync(self) -> SyncTask | None:
        return None

    def end_sync(self, task: SyncTask, error: OSError | None) -> None:
        raise AssertionError


async def one_turn() -> None:
    """Return after every callback that is scheduled now."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_soon(passed.set_result, None)
    await passed


async def test_writes_come_before_readers_and_readers_before_answers() -> None:
    events: list[str] = []
    turn = Turn(asyncio.get_running_loop(), lambda _: events.append("written"))
    turn.send(lambda: events.append("send"))
    turn.look(lambda: events.append("look"))
    turn.write(Target(events))
    assert events == []
    await one_turn()
    assert events == ["write", "written", "look", "send"]


async def test_a_target_is_written_once_a_turn() -> None:
    events: list[str] = []
    turn = Turn(asyncio.get_running_loop(), lambda _: None)
    target = Target(events)
    for _ in range(3):
        turn.write(target)
    await one_turn()
    assert events == ["write"]
    turn.write(target)
    await one_turn()
    assert events == ["write", "write"]


async def test_a_failed_write_does_not_keep_the_others_from_theirs() -> None:
    events: list[str] = []
    written: list[object] = []
    turn = Turn(asyncio.get_running_loop(), written.append)
    bad, good = Target(events, fails=True), Target(events)
    turn.write(bad)
    turn.write(good)
    turn.send(lambda: events.append("send"))
    await one_turn()
    assert events == ["write", "write", "send"]
    assert written == [good]


async def test_what_an_answer_causes_is_done_in_the_following_turn() -> None:
    events: list[str] = []
    turn = Turn(asyncio.get_running_loop(), lambda _: None)
    turn.send(lambda: turn.write(Target(events)))
    await one_turn()
    await one_turn()
    assert events == ["write"]


async def test_a_step_that_fails_keeps_neither_the_others_nor_the_next_turn_from_theirs() -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    events: list[str] = []
    turn = Turn(asyncio.get_running_loop(), lambda _: None)
    for _ in range(2):
        turn.look(fails)
        turn.look(lambda: events.append("look"))
        turn.send(fails)
        turn.send(lambda: events.append("send"))
        await one_turn()
    assert events == ["look", "send"] * 2


async def test_a_log_that_fails_in_an_unknown_way_does_not_stop_the_turns() -> None:
    class Broken(Target):
        def write_pending(self) -> None:
            raise RuntimeError("a bug")

    events: list[str] = []
    turn = Turn(asyncio.get_running_loop(), lambda _: None)
    for _ in range(2):
        turn.write(Broken(events))
        turn.write(Target(events))
        await one_turn()
    assert events == ["write", "write"]
