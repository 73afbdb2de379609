"""However many passwords a client sends at the same time, no more of them are looked at than the limits on failures allow."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.core.security.identity import Bearer, Identity, Secret
from penstock.core.security.scram import ScramHash
from penstock.errors import PenstockError, Reason
from penstock.limits import (
    LOGIN_DELAY_MS,
    LOGIN_DELAY_MS_MAX,
    LOGIN_FAILURES_FREE,
    LOGINS_PER_CLIENT_MAX,
)
from tests.unit.core.security.world import ADDRESS, World

MINUTE_MS = 60_000
STEADY_MAX = LOGIN_FAILURES_FREE + 1
"""Of any later minute: ten are forgiven, and one may be under way at each end."""
FIRST_MINUTE_MAX = 2 * LOGIN_FAILURES_FREE + 6
"""Those that are free, those that are forgiven, and those whose delays are still short."""


class Timed(World):
    """A world in which time passes: a pause ends when the test has let so much of it pass."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[int, asyncio.Future[None]]] = []
        self._attempts: set[asyncio.Task[Any]] = set()

    async def _pause(self, milliseconds: int) -> None:
        self.pauses.append(milliseconds)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.append((self.clock.monotonic_ms() + milliseconds, end))
        await end

    def begin(self, attempt: Coroutine[Any, Any, Identity]) -> "asyncio.Task[Identity]":
        task = asyncio.ensure_future(attempt)
        self._attempts.add(task)
        return task

    async def guess_on(self) -> Identity:
        """Guess, and when that is refused, guess again."""
        number = 0
        while True:
            number += 1
            try:
                return await self.log_in(password=f"guess-{number}")
            except PenstockError:
                continue

    async def settle(self) -> None:
        """Let everything happen that waits for no time."""
        for _ in range(500):
            await asyncio.sleep(0)

    async def let_pass(self, milliseconds: int) -> None:
        until_ms = self.clock.monotonic_ms() + milliseconds
        await self.settle()
        while due := [each for each in self._ends if each[0] <= until_ms]:
            at_ms, end = min(due, key=lambda each: each[0])
            self._ends.remove((at_ms, end))
            self.clock.advance(max(0, at_ms - self.clock.monotonic_ms()))
            if not end.done():
                end.set_result(None)
            await self.settle()
        self.clock.advance(until_ms - self.clock.monotonic_ms())

    async def ended(self) -> None:
        for task in self._attempts:
            task.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)


async def timed() -> Timed:
    world = Timed()
    await world.loaded()
    await world.user()
    world.hashes = 0
    return world


async def test_parallel_guesses_are_no_faster_than_guesses_one_after_the_other() -> None:
    world = await timed()
    guesses = [world.begin(world.log_in(password=f"wrong-{number}")) for number in range(LOGINS_PER_CLIENT_MAX)]
    await world.settle()
    assert world.hashes == LOGIN_FAILURES_FREE
    await world.let_pass(MINUTE_MS)
    one_after_the_other = await timed()
    one_after_the_other.begin(one_after_the_other.guess_on())
    await one_after_the_other.let_pass(MINUTE_MS)
    assert world.hashes <= one_after_the_other.hashes <= FIRST_MINUTE_MAX
    await one_after_the_other.ended()
    looked_at = world.hashes
    await world.let_pass(MINUTE_MS)
    assert 0 < world.hashes - looked_at <= STEADY_MAX
    assert sum(guess.done() for guess in guesses) <= world.hashes
    await world.ended()


async def test_guesses_at_many_users_from_one_address_count_together() -> None:
    world = await timed()
    for number in range(LOGINS_PER_CLIENT_MAX):
        world.begin(world.log_in(user=f"user-{number}"))
    await world.let_pass(MINUTE_MS)
    assert LOGIN_FAILURES_FREE < world.hashes <= FIRST_MINUTE_MAX
    await world.ended()


async def test_a_right_password_among_wrong_ones_gets_in_after_its_delay() -> None:
    world = await timed()
    for number in range(LOGIN_FAILURES_FREE + 2):
        world.begin(world.log_in(password=f"wrong-{number}"))
    right = world.begin(world.log_in())
    await world.settle()
    assert not right.done()
    await world.let_pass(LOGIN_DELAY_MS_MAX)
    assert right.result().principal == "User:anna"
    await world.ended()


async def test_others_are_not_slowed_down_by_guesses_that_wait() -> None:
    world = await timed()
    await world.user("bert")
    await world.log_in("bert", client=ADDRESS)
    world.authenticator._remembered.clear()
    for number in range(LOGINS_PER_CLIENT_MAX):
        world.begin(world.log_in(password=f"wrong-{number}"))
    await world.settle()
    elsewhere = world.begin(world.log_in("bert", client="10.0.0.2"))
    here_before = world.begin(world.log_in("bert"))
    await world.settle()
    assert elsewhere.result().principal == here_before.result().principal == "User:bert"
    await world.ended()


async def test_more_guesses_than_may_wait_are_refused_at_once_and_leave_room_for_others() -> None:
    world = await timed()
    for number in range(LOGINS_PER_CLIENT_MAX):
        world.begin(world.log_in(password=f"wrong-{number}"))
    await world.settle()
    with pytest.raises(PenstockError) as refused:
        await world.log_in(password="one-more")
    assert refused.value.reason is Reason.POLICY_VIOLATION
    await world.ended()
    assert world.authenticator.attempts._turns._lines == {}


async def test_many_right_logins_at_the_same_time_are_not_delayed() -> None:
    world = await timed()
    for number in range(LOGINS_PER_CLIENT_MAX):
        await world.user(f"user-{number}")
    logins = [world.begin(world.log_in(f"user-{number}")) for number in range(LOGINS_PER_CLIENT_MAX)]
    await world.settle()
    assert [login.result().principal for login in logins] == [f"User:user-{n}" for n in range(LOGINS_PER_CLIENT_MAX)]
    assert world.pauses == []


async def test_one_credential_is_checked_once_for_all_who_come_with_it_at_the_same_time() -> None:
    world = await timed()
    logins = [world.begin(world.log_in()) for _ in range(10 * LOGINS_PER_CLIENT_MAX)]
    await world.settle()
    assert {login.result().principal for login in logins} == {"User:anna"}
    assert world.hashes == 1
    wrong = [world.begin(world.log_in(password="wrong")) for _ in range(3)]
    await world.let_pass(LOGIN_DELAY_MS_MAX)
    outcomes = await asyncio.gather(*wrong, return_exceptions=True)
    assert all(isinstance(outcome, PenstockError) for outcome in outcomes)
    assert world.hashes == 2
    assert world.failures() == {("plain", "wrong-password"): 3}


async def test_when_the_client_whose_credential_is_checked_leaves_the_next_one_takes_over() -> None:
    world = await timed()
    for number in range(LOGIN_FAILURES_FREE + 1):
        world.begin(world.log_in(password=f"wrong-{number}"))
    await world.let_pass(3 * LOGIN_DELAY_MS)
    logins = [world.begin(world.log_in()) for _ in range(3)]
    await world.settle()
    logins[0].cancel()
    await world.settle()
    assert not logins[1].done()
    await world.let_pass(2 * LOGIN_DELAY_MS)
    assert [login.result().principal for login in logins[1:]] == ["User:anna"] * 2
    await world.ended()


async def test_a_client_that_leaves_while_its_password_is_checked_has_failed() -> None:
    world = await timed()
    for number in range(LOGIN_FAILURES_FREE):
        left = world.begin(world.log_in(password=f"wrong-{number}"))
        await asyncio.sleep(0)
        assert world.hashes == number + 1
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    assert world.hashes == LOGIN_FAILURES_FREE
    world.begin(world.log_in())
    await world.settle()
    assert world.pauses == [2 * LOGIN_DELAY_MS]
    await world.ended()


async def test_proofs_of_scram_have_the_same_limit() -> None:
    world = await timed()

    async def guess(number: int) -> Identity:
        login = world.authenticator.scram(ScramHash.SHA_256, ADDRESS, is_private=True)
        answer = (await login.first(f"n,,n=anna,r=abc{number}".encode())).decode()
        nonce = answer.split(",")[0].removeprefix("r=")
        return (await login.final(f"c=biws,r={nonce},p=AAAA".encode()))[0]

    for number in range(LOGINS_PER_CLIENT_MAX):
        world.begin(guess(number))
    await world.let_pass(MINUTE_MS)
    failed = world.failures()["scram-sha-256", "wrong-password"]
    assert LOGIN_FAILURES_FREE < failed <= FIRST_MINUTE_MAX
    await world.ended()


async def test_keys_and_tokens_need_no_turn() -> None:
    world = await timed()
    _, key = await world.authenticator.keys.create("anna", "", 0, None)
    for number in range(LOGINS_PER_CLIENT_MAX):
        world.begin(world.log_in(password=f"wrong-{number}"))
    await world.let_pass(LOGIN_DELAY_MS)
    by_key = world.begin(world.authenticator.authenticate(Bearer(Secret(key.encode())), ADDRESS, is_private=True))
    await world.let_pass(LOGIN_DELAY_MS_MAX)
    assert by_key.result().principal == "User:anna"
    await world.ended()
