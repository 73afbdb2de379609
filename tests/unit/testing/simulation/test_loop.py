"""The simulated loop: virtual time, processes that are killed and paused."""

import asyncio
import gc
import weakref
from random import Random

import pytest

from penstock.testing.simulation.loop import Process, SimulatedExecutor, SimulatedLoop, Stuck


def new_loop() -> SimulatedLoop:
    return SimulatedLoop(Random(1))


def test_waiting_takes_no_time_of_ours() -> None:
    loop = new_loop()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == pytest.approx(3600)
    loop.close()


def test_a_wait_that_nothing_can_end_is_an_error() -> None:
    loop = new_loop()
    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_what_happens_over_and_over_without_any_time_passing_is_an_error() -> None:
    loop = new_loop()

    def spin() -> None:
        loop.call_soon(spin)

    loop.call_at(1, spin)
    with pytest.raises(Stuck, match=r"At 1\.000 s something happens over and over"):
        loop.run_until_complete(asyncio.sleep(2))
    loop.close()


def test_what_a_killed_process_had_to_do_is_not_done() -> None:
    loop = new_loop()
    process = Process("one", "10.0.0.1")
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(2)
        finally:
            done.append("it was tidied up")

    loop.spawn(process, work())
    loop.call_later(1, process.kill)
    loop.run_until_complete(asyncio.sleep(5))
    assert done == []
    process.bury()
    loop.close()


def test_a_paused_process_goes_on_in_order_and_what_was_cancelled_stays_so() -> None:
    loop = new_loop()
    process = Process("one", "10.0.0.1")
    done: list[tuple[str, float]] = []

    def first() -> None:
        done.append(("first", loop.time()))
        second.cancel()

    loop.call_at(1, first, context=process.context())
    second = loop.call_at(2, done.append, ("second", 0.0), context=process.context())
    loop.call_at(3, lambda: done.append(("third", loop.time())), context=process.context())
    process.pause()
    loop.call_at(5, process.resume, loop)
    loop.run_until_complete(asyncio.sleep(6))
    assert done == [("first", 5.0), ("third", 5.0)]
    loop.close()


def test_what_has_run_is_freed_without_the_collector() -> None:
    loop = new_loop()
    process = Process("one", "10.0.0.1")
    context = process.context()
    handles = [
        weakref.ref(each)
        for each in (
            loop.call_soon(lambda: None, context=context),
            loop.call_later(1, lambda: None, context=context),
        )
    ]
    was_on = gc.isenabled()
    gc.disable()
    try:
        loop.run_until_complete(asyncio.sleep(2))
        assert [handle() for handle in handles] == [None, None]
    finally:
        if was_on:
            gc.enable()
        loop.close()


def test_work_handed_to_threads_belongs_to_its_process() -> None:
    loop = new_loop()
    alive, dead = Process("alive", "10.0.0.1"), Process("dead", "10.0.0.2")
    done: list[str] = []
    executor = SimulatedExecutor(loop, 0.5)
    for process in (alive, dead):
        process.context().run(executor.submit, done.append, process.name)
    dead.kill()
    loop.run_until_complete(asyncio.sleep(1))
    assert done == ["alive"]
    loop.close()
