"""Jobs run a piece at a time, share the turns, and wait for what they say they wait for."""

from functools import partial

import pytest

from penstock.core.coordinators.jobs import NEXT_TURN, TURN_BYTES, Jobs, Outcome
from penstock.errors import PenstockError, Reason
from tests.crash.simulated_world import StepFlusher


@pytest.fixture
def flusher():
    return StepFlusher()


@pytest.fixture
def jobs(flusher):
    return Jobs(flusher)


def test_a_job_that_has_done_enough_goes_on_in_the_next_turn(flusher, jobs) -> None:
    done = []

    async def work():
        for number in range(6):
            done.append(number)
            if jobs.spend(TURN_BYTES // 2):
                await NEXT_TURN

    jobs.start(work)
    assert done == []
    for expected in (2, 4, 6):
        flusher.write()
        assert len(done) == expected


def test_jobs_take_turns(flusher, jobs) -> None:
    done = []

    async def work(name):
        for _ in range(3):
            done.append(name)
            if jobs.spend(TURN_BYTES):
                await NEXT_TURN

    jobs.start(partial(work, "a"))
    jobs.start(partial(work, "b"))
    for _ in range(6):
        flusher.write()
    assert done == ["a", "b", "a", "b", "a", "b"]


def test_a_job_waits_for_an_outcome_that_comes_later_or_is_there(flusher, jobs) -> None:
    outcomes = [Outcome(), Outcome()]
    outcomes[0](None)
    seen = []

    async def work():
        for outcome in outcomes:
            await outcome.known()
            seen.append(outcome.reason)

    jobs.start(work)
    for _ in range(3):
        flusher.write()
    assert seen == [None]
    outcomes[1](Reason.STORAGE_ERROR)
    flusher.write()
    assert seen == [None, Reason.STORAGE_ERROR]


def test_a_failed_outcome_is_raised_by_who_checks_it() -> None:
    outcome = Outcome()
    outcome.check()
    outcome(Reason.STORAGE_ERROR)
    with pytest.raises(PenstockError) as raised:
        outcome.check()
    assert raised.value.reason is Reason.STORAGE_ERROR


def test_a_job_that_breaks_does_not_take_the_others_with_it(flusher, jobs) -> None:
    done = []

    async def breaks():
        raise ZeroDivisionError
        await NEXT_TURN

    async def works():
        done.append(1)
        await NEXT_TURN

    jobs.start(breaks)
    jobs.start(works)
    with pytest.raises(ZeroDivisionError):
        flusher.write()
    flusher.write()
    assert done == [1]


def test_nothing_runs_after_the_end(flusher, jobs) -> None:
    done = []

    async def work():
        while True:
            done.append(1)
            await NEXT_TURN

    jobs.start(work)
    flusher.write()
    count = len(done)
    jobs.close()
    jobs.start(work)
    flusher.write()
    assert len(done) == count > 0
