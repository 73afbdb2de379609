"""The SASL mechanisms of Kafka: from the bytes of a step to a credential, and to the bytes of the answer."""

import re
from typing import Final, NamedTuple, Protocol

from penstock.core.security.attempts import Failure, Method
from penstock.core.security.authenticator import OAUTHBEARER, PLAIN, Authenticator
from penstock.core.security.identity import Bearer, Identity, Password, Secret
from penstock.core.security.scram import ScramHash
from penstock.errors import PenstockError

_PLAIN_PARTS: Final = 3
_BEARER: Final = re.compile(
    rb"n,(?:a=[^,\x01]*)?,\x01auth=[Bb]earer +([A-Za-z0-9._~+/=-]+)(?:\x01[A-Za-z]+=[^\x01]*)*\x01\x01"
)
"""RFC 7628: a header, then pairs that end with 0x01, of which ``auth`` is the first."""
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class Step(NamedTuple):
    """The answer to one message of the client, and the identity if it was the last one."""

    answer: bytes
    identity: Identity | None = None


class Exchange(Protocol):
    """One login. PenstockError AUTHENTICATION_FAILED, late, ends it."""

    async def step(self, data: bytes) -> Step:
        """The answer to the client's next message."""
        ...


class Peer(NamedTuple):
    """Whose login it is."""

    authenticator: Authenticator
    client: str
    """The address."""
    is_private: bool


def begin(mechanism: str, peer: Peer) -> Exchange:
    """A login by a mechanism that is allowed."""
    if mechanism == PLAIN:
        return PlainExchange(peer)
    if mechanism == OAUTHBEARER:
        return BearerExchange(peer)
    return ScramSteps(peer, ScramHash(mechanism))


class PlainExchange:
    """RFC 4616: one message, ``[authzid] NUL user NUL password``."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def step(self, data: bytes) -> Step:
        """The only one."""
        authenticator, client, is_private = self._peer
        parts = data.split(b"\0")
        if len(parts) != _PLAIN_PARTS or not parts[1] or not parts[2] or parts[0] not in (b"", parts[1]):
            await authenticator.attempts.fail(Method.PLAIN, Failure.MALFORMED, client)
        try:
            user = parts[1].decode()
        except UnicodeDecodeError:
            await authenticator.attempts.fail(Method.PLAIN, Failure.MALFORMED, client)
        credential = Password(user, Secret(parts[2]))
        return Step(b"", await authenticator.authenticate(credential, client, is_private=is_private))


class ScramSteps:
    """RFC 5802: the salt, then the proof."""

    def __init__(self, peer: Peer, kind: ScramHash) -> None:
        self._login = peer.authenticator.scram(kind, peer.client, is_private=peer.is_private)
        self._is_begun = False

    async def step(self, data: bytes) -> Step:
        """The first or the second one."""
        if not self._is_begun:
            self._is_begun = True
            return Step(await self._login.first(data))
        identity, answer = await self._login.final(data)
        return Step(answer, identity)


class BearerExchange:
    """RFC 7628: one message with the token. After a wrong one there is another round, in which the client accepts the error."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._error: PenstockError | None = None

    async def step(self, data: bytes) -> Step:
        """The token, or the empty message after an error."""
        if self._error is not None:
            raise self._error
        authenticator, client, is_private = self._peer
        found = _BEARER.fullmatch(data)
        if found is None:
            await authenticator.attempts.fail(Method.TOKEN, Failure.MALFORMED, client)
        try:
            identity = await authenticator.authenticate(Bearer(Secret(found[1])), client, is_private=is_private)
        except PenstockError as error:
            self._error = error
            return Step(_INVALID_TOKEN)
        return Step(b"", identity)
