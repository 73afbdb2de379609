"""Requests that ask for much: nobody else waits for them, and what they find is in the order that was asked for."""

import asyncio
from time import perf_counter

import pytest

from penstock.gateways.kafka import portions
from penstock.gateways.kafka.portions import AT_A_TIME_MAX, at_a_time, in_portions


class Others:
    """Counts the turns that others have meanwhile."""

    def __init__(self) -> None:
        self.turns = 0

    async def __aenter__(self) -> "Others":
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        self.turns = 0
        return self

    async def _run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def __aexit__(self, *_raised: object) -> None:
        self._task.cancel()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that goes on only when a test says so."""
    now = [perf_counter()]
    monkeypatch.setattr(portions, "perf_counter", lambda: now[0])
    return now


async def test_others_have_their_turn_whenever_one_was_long(clock: list[float]) -> None:
    def slow(number: int) -> int:
        clock[0] += portions.TURN_SECONDS / 2
        return -number

    async with Others() as others:
        assert await in_portions(range(100), slow) == [-number for number in range(100)]
        assert 30 <= others.turns <= 100


async def test_however_many_ask_for_much_the_loop_is_held_as_long_as_by_one(clock: list[float]) -> None:
    longest, held_since = 0.0, clock[0]

    def slow(number: int) -> int:
        clock[0] += portions.TURN_SECONDS / 2
        return -number

    async def look() -> None:
        nonlocal longest, held_since
        while True:
            longest, held_since = max(longest, clock[0] - held_since), clock[0]
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    found = await asyncio.gather(*(in_portions(range(20), slow) for _ in range(40)))
    looking.cancel()
    assert found == [[-number for number in range(20)]] * 40
    assert longest <= 3 * portions.TURN_SECONDS


async def test_whoever_waits_for_its_turn_goes_on_in_the_order_in_which_all_came(clock: list[float]) -> None:
    order: list[str] = []

    def ask(name: str) -> "asyncio.Task[list[None]]":
        def note(_: int) -> None:
            clock[0] += 2 * portions.TURN_SECONDS
            order.append(name)

        return asyncio.create_task(in_portions(range(3), note))

    asked = [ask(name) for name in ("a", "b", "gone", "c")]
    await asyncio.sleep(0)
    asked[2].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    # The first of them began at once.
    assert order == ["a", *["a", "b", "c"] * 2, "b", "c"]


async def test_what_is_quick_is_done_at_one_go(clock: list[float]) -> None:
    async with Others() as others:
        assert await in_portions(range(100), lambda number: number) == list(range(100))
        assert others.turns == 0


async def test_only_so_many_are_under_way_and_the_order_is_kept() -> None:
    under_way = most = 0

    async def wait(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        # The later ones are done first.
        for _ in range(10 - number % 10):
            await asyncio.sleep(0)
        under_way -= 1
        return number

    assert await at_a_time(range(1000), wait) == list(range(1000))
    assert most == AT_A_TIME_MAX


async def test_what_does_not_wait_lets_others_have_their_turn_too() -> None:
    async def at_once(number: int) -> int:
        return number

    async with Others() as others:
        assert await at_a_time(range(10 * AT_A_TIME_MAX), at_once) == list(range(10 * AT_A_TIME_MAX))
        assert others.turns >= 9


async def test_whoever_gives_up_leaves_nothing_behind() -> None:
    async def never(number: int) -> int:
        await asyncio.Event().wait()
        return number

    before = asyncio.all_tasks()
    asking = asyncio.create_task(at_a_time(range(1000), never))
    for _ in range(3):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_mistake_in_one_of_them_is_told() -> None:
    async def fail(number: int) -> int:
        return 1 // (number - 500)

    with pytest.raises(ZeroDivisionError):
        await at_a_time(range(1000), fail)
