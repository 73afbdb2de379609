"""An authenticator on a store in memory, with a clock that the test moves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from penstock.core.security.authenticator import Authenticator
from penstock.core.security.identity import Identity, Password, Secret
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.meters import Meters
from penstock.settings import Authentication, OauthSettings, SecuritySettings, Settings
from tests.support.tokens import AUDIENCE, ISSUER, Provider
from tests.support.worlds import CountingEntropy, ManualClock

ADDRESS = "10.0.0.1"


class World:
    """One node's authenticator. Its pauses are noted, and take no time."""

    def __init__(self, store: MemoryStore | None = None, **security: Any) -> None:
        self.store = store or MemoryStore()
        self.clock = ManualClock()
        self.meters = Meters()
        self.reports: list[str] = []
        self.pauses: list[int] = []
        self.hashes = 0
        self.provider: Provider | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        oauth = security.pop("oauth", OauthSettings())
        settings = Settings(security=SecuritySettings(authentication=Authentication.REQUIRED, **security), oauth=oauth)
        self.authenticator = Authenticator(
            settings,
            self.store,
            self.clock,
            CountingEntropy(),
            self.meters,
            background=self._begin,
            off_loop=self._run,
            report=self.reports.append,
        )
        self.authenticator.attempts.pause = self._pause

    async def loaded(self) -> "World":
        await self.authenticator.load()
        return self

    def _run(self, work: Any, done: Any) -> None:
        self.hashes += 1
        work()
        asyncio.get_running_loop().call_soon(done)

    def _begin(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pause(self, milliseconds: int) -> None:
        self.pauses.append(milliseconds)

    async def user(self, name: str = "anna", password: str = "right", *, admin: bool = False) -> None:
        scram = await self.authenticator.hashed(password)
        await self.authenticator.users.create(name, scram, self.clock.now_ms(), admin=admin)

    async def set_password(self, name: str, password: str) -> None:
        await self.authenticator.users.set_password(name, await self.authenticator.hashed(password))

    async def log_in(
        self, user: str = "anna", password: str = "right", client: str = ADDRESS, *, is_private: bool = True
    ) -> Identity:
        credential = Password(user, Secret(password.encode()))
        return await self.authenticator.authenticate(credential, client, is_private=is_private)

    async def refusal(self, work: Coroutine[Any, Any, object]) -> PenstockError:
        """The refusal of a login, which was late."""
        before = len(self.pauses)
        try:
            found = await work
        except PenstockError as error:
            assert error.reason is Reason.AUTHENTICATION_FAILED
            assert self.pauses[before:], "it was refused at once"
            return error
        raise AssertionError(f"it was admitted as {found}")

    def failures(self) -> dict[tuple[str, ...], int]:
        return dict(self.meters.authentication_failures.items())


async def with_tokens(provider: Provider | None = None, **oauth: Any) -> World:
    """A world that takes the tokens of a provider, whose keys the test can change."""
    chosen = msgspec.structs.replace(
        OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example.com/keys"), **oauth
    )
    world = World(oauth=chosen)
    world.provider = provider or Provider()

    async def fetch() -> bytes:
        assert world.provider is not None
        return world.provider.key_set()

    world.authenticator.tokens.fetch = fetch
    return await world.loaded()
