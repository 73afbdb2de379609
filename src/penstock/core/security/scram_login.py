"""One login by SCRAM: the exchange of messages with the users of this broker, and with the limits on failures."""

from typing import TYPE_CHECKING, Final, NoReturn

from penstock.core.security.attempts import Failure, Method
from penstock.core.security.identity import Identity
from penstock.core.security.scram import ScramError, ScramExchange, ScramHash, ScramKeys
from penstock.core.security.users import UserRecord

if TYPE_CHECKING:
    from penstock.core.security.authenticator import Authenticator

_NONCE_BYTES: Final = 18
"""144 random bits."""


class ScramLogin:
    """The client's first message, then its proof. PenstockError AUTHENTICATION_FAILED, late, ends it."""

    def __init__(self, authenticator: "Authenticator", kind: ScramHash, client: str, *, is_private: bool) -> None:
        self._authenticator = authenticator
        self._kind: Final = kind
        self._method: Final = Method(kind.value.lower())
        self._client: Final = client
        self._is_allowed: Final = kind.value in authenticator.mechanisms(is_private=is_private)
        self._record: UserRecord | None = None
        nonce = authenticator.entropy.secret(_NONCE_BYTES).hex()
        self._exchange: Final = ScramExchange(kind, self._keys_for, nonce)

    def _keys_for(self, user: str) -> ScramKeys:
        self._record = self._authenticator.users.get(user)
        return self._authenticator.scram_keys(self._kind, user)

    async def first(self, message: bytes) -> bytes:
        """The answer with salt and iterations, also for a user that does not exist."""
        if not self._is_allowed:
            await self._fail(Failure.NOT_PRIVATE)
        try:
            answer = self._exchange.first(message)
        except ScramError:
            await self._fail(Failure.MALFORMED)
        return answer

    async def final(self, message: bytes) -> tuple[Identity, bytes]:
        """The identity, and the answer that proves that this broker knows the password, too."""
        record, user = self._record, self._exchange.user
        attempts = self._authenticator.attempts
        # The proof is what shows whether a guess was right. The first message is not worth a turn, which it could keep from others.
        async with attempts.turn(self._client, user):
            try:
                answer = self._exchange.final(message)
            except ScramError:
                await self._fail(Failure.UNKNOWN_USER if record is None else Failure.WRONG_PASSWORD)
            # The user may have changed since the first message.
            if record is None or self._authenticator.users.get(user) is not record:
                await self._fail(Failure.UNKNOWN_USER)
            attempts.succeeded(self._client, user)
        identity = self._authenticator.identity(user, self._method, generation=record.generation)
        attempts.proved(identity, self._client)
        return self._authenticator.session(identity), answer

    async def _fail(self, why: Failure) -> NoReturn:
        await self._authenticator.attempts.fail(self._method, why, self._client, self._exchange.user)
