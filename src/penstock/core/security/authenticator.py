"""Turns credentials into identities, the same way for every gateway.

Fails closed: whatever cannot be checked is refused, late, counted and with one text for all causes. Passwords are hashed outside the event
loop, and known for some minutes afterwards; a change of any user or key forgets all of them, and gateways then close what is not
current any more (``on_changed``).
"""

import hashlib
from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.core.security.access import Principal
from penstock.core.security.attempts import Attempts, Failure, LoginFailed, Method, network_of
from penstock.core.security.identity import (
    Bearer,
    Certificate,
    Credential,
    Identity,
    Password,
    check_principal,
)
from penstock.core.security.keys import ApiKeys, KeyRecord, is_api_key
from penstock.core.security.scram import ScramHash, ScramKeys, fake_keys, matches, saslprep
from penstock.core.security.scram_login import ScramLogin
from penstock.core.security.threads import Threads
from penstock.core.security.tokens import TokenError, Tokens
from penstock.core.security.users import UserRecord, Users, check_password, hash_password
from penstock.errors import PenstockError, Reason
from penstock.limits import CREDENTIALS_REMEMBERED_MAX, CREDENTIALS_REMEMBERED_MS, PASSWORD_CHARS_MAX
from penstock.metadata.port import MetadataStore
from penstock.meters import Meters
from penstock.operations.access import USER
from penstock.ports import Background, Clock, Entropy, OffLoop, Report
from penstock.settings import Authentication, Settings

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *(kind.value for kind in ScramHash), OAUTHBEARER)
"""The SASL mechanisms, in the order in which clients see them."""


class Authenticator:
    """What gateways ask, on the event loop. Nobody is known until :meth:`load`."""

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        meters: Meters,
        *,
        background: Background,
        off_loop: OffLoop,
        report: Report,
    ) -> None:
        security = settings.security
        self.is_required: Final = security.authentication is Authentication.REQUIRED
        """Whether clients must authenticate. If not, gateways ask nothing and everyone is ANONYMOUS."""
        self.version = 0
        """Changes when a user or a key changes: what was remembered of an identity must be checked again."""
        self.on_changed: Final[list[Callable[[], None]]] = []
        """Called after such a change, so that gateways close the connections whose identity is not current any more."""
        self.users: Final = Users(store, entropy, self._changed)
        self.keys: Final = ApiKeys(store, self.users, entropy, self._changed)
        self.tokens: Final = Tokens(settings.oauth, clock, background, report)
        self.threads: Final = Threads(off_loop)
        self._security: Final = security
        self._mechanisms: Final = _mechanisms(security.mechanisms, tokens=self.tokens.is_on)
        self._clock = clock
        self.entropy: Final = entropy
        self.attempts: Final = Attempts(clock, meters, report, lambda name: self.users.get(name) is not None)
        self._secret: Final = entropy.secret(32)
        """Of this process: what is remembered, and the salts of users that do not exist, cannot be made elsewhere."""
        self._under_way: Final[dict[tuple[str, bool, bytes], list[Future[PenstockError | None]]]] = {}
        """The checks that have begun, by client and credential, and who waits for the error of each, if any."""
        self._remembered: OrderedDict[bytes, tuple[Identity, int]] = OrderedDict()

    async def load(self) -> None:
        """Read all users and keys and follow them; with authentication off, there are none."""
        if self.is_required:
            await self.users.load()
            await self.keys.load()
            await self.tokens.load()

    def mechanisms(self, *, is_private: bool) -> tuple[str, ...]:
        """The SASL mechanisms that clients of a connection may use."""
        return tuple(name for name in self._mechanisms if is_private or (name not in _READABLE and self._may_be_seen))

    @property
    def _may_be_seen(self) -> bool:
        """Whether SCRAM is allowed where others can read: it hides the password, but not what follows."""
        return self._security.insecure

    def is_admin(self, principal: Principal) -> bool:
        """Whether this is a user that may do everything."""
        return principal.startswith(USER) and self.users.is_admin(principal.removeprefix(USER))

    # Credentials that are complete.

    async def authenticate(self, credential: Credential, client: str, *, is_private: bool) -> Identity:
        """The identity that a credential proves. PenstockError AUTHENTICATION_FAILED, late, with one text for every cause.

        ``client`` is the address, for the limits on failures. ``is_private``: the bytes cannot be read on the way (TLS or loopback);
        otherwise a credential that can be replayed is refused.
        """
        if isinstance(credential, Certificate):
            return self.certified(credential.name)
        found = self.remembered(credential, is_private=is_private)
        return self.session(found or await self._checked_once(credential, client, is_private=is_private))

    async def _checked_once(self, credential: Password | Bearer, client: str, *, is_private: bool) -> Identity:
        """Check a credential once for all calls of a client that come with it at the same time."""
        key = network_of(client), is_private, self._fingerprint(credential)
        while (waiting := self._under_way.get(key)) is not None:
            mine: Future[PenstockError | None] = Future()
            waiting.append(mine)
            error = await mine
            if isinstance(error, LoginFailed):
                await self.attempts.fail(error.method, error.why, client, error.user, error.detail)
            if error is not None:
                raise error
            found = self.remembered(credential, is_private=is_private)
            if found is not None:
                return found
        self._under_way[key] = []
        error = None
        try:
            return await self._checked(credential, client, is_private=is_private)
        except PenstockError as failed:
            error = failed
            raise
        finally:
            # Without an error, the others find what is remembered; if this call was cancelled, one of them checks.
            for mine in self._under_way.pop(key):
                if not mine.done():
                    mine.set_result(error)

    async def _checked(self, credential: Password | Bearer, client: str, *, is_private: bool) -> Identity:
        secret = credential.password if isinstance(credential, Password) else credential.token
        if not is_private:
            await self.attempts.fail(_method_of(credential), Failure.NOT_PRIVATE, client)
        try:
            text = secret.reveal().decode()
        except UnicodeDecodeError:
            await self.attempts.fail(_method_of(credential), Failure.MALFORMED, client)
        if is_api_key(text):
            identity = await self._by_key(text, credential, client)
        elif isinstance(credential, Bearer):
            identity = await self._by_token(text, client)
        else:
            identity = await self._by_password(credential.user, text, client)
        self._remember(credential, identity)
        self.attempts.proved(identity, client)
        return identity

    def remembered(self, credential: Credential, *, is_private: bool) -> Identity | None:
        """The identity of a credential that was checked a short time ago and is still valid, without waiting."""
        if isinstance(credential, Certificate) or not is_private:
            return None
        found = self._remembered.get(self._fingerprint(credential))
        if found is None or self._clock.monotonic_ms() >= found[1] or not self.is_current(found[0]):
            return None
        return found[0]

    def certified(self, name: str) -> Identity:
        """The identity that a client certificate proves, which TLS has verified already. AUTHENTICATION_FAILED, at once."""
        try:
            check_principal(name)
        except ValueError:
            raise self.attempts.refused(Method.CERTIFICATE, Failure.MALFORMED) from None
        if self.users.is_admin(name):
            raise self.attempts.refused(Method.CERTIFICATE, Failure.ADMINISTRATOR)
        identity = self.session(self.identity(name, Method.CERTIFICATE))
        self.attempts.proved(identity, "")
        return identity

    def is_current(self, identity: Identity) -> bool:
        """Whether the identity still holds: its user and key exist, its password is the same, and its token has not expired."""
        if not self.is_required:
            return True
        if identity.expires_ms is not None and self._clock.now_ms() >= identity.expires_ms:
            return False
        if identity.key_id:
            key = self.keys.get(identity.key_id)
            return key is not None and key.user == identity.name
        if identity.generation:
            user = self.users.get(identity.name)
            return user is not None and user.generation == identity.generation
        return bool(identity.method) and not self.is_admin(identity.principal)

    async def hashed(self, password: str) -> dict[str, ScramKeys]:
        """What is stored of a new password. PenstockError if it is not allowed."""
        prepared = check_password(password)
        return await self.threads.run(lambda: hash_password(prepared, self.entropy.secret))

    async def _by_password(self, user: str, password: str, client: str) -> Identity:
        method = Method.PLAIN
        try:
            user, password = saslprep(user), saslprep(password)
        except ValueError:
            await self.attempts.fail(method, Failure.MALFORMED, client)
        if not user or not 0 < len(password) <= PASSWORD_CHARS_MAX:
            await self.attempts.fail(method, Failure.MALFORMED, client)
        async with self.attempts.turn(client, user):
            record = self.users.get(user)
            # For an unknown user as well, so that the time tells nothing.
            right = await self._matches(record, user, password, client)
            # The user may have changed meanwhile.
            if record is None or record is not self.users.get(user):
                await self.attempts.fail(method, Failure.UNKNOWN_USER, client, user)
            if not right:
                await self.attempts.fail(method, Failure.WRONG_PASSWORD, client, user)
            self.attempts.succeeded(client, user)
        return self.identity(user, Method.PLAIN, generation=record.generation)

    async def _matches(self, record: UserRecord | None, user: str, password: str, client: str) -> bool:
        kind = _stored_kind(record)
        keys = self.scram_keys(kind, user)
        try:
            return await self.threads.run(lambda: matches(kind, keys, password))
        except PenstockError:
            raise
        except BaseException:
            self.attempts.abandoned(client, user)
            raise

    async def _by_key(self, key: str, credential: Password | Bearer, client: str) -> Identity:
        method = Method.API_KEY
        await self.attempts.hold_back(client)
        found = self.keys.verified(key)
        if found is None:
            await self.attempts.fail(method, Failure.WRONG_KEY, client)
        key_id, record = found
        if isinstance(credential, Password) and credential.user not in (key_id, record.user):
            await self.attempts.fail(method, Failure.WRONG_KEY, client)
        if record.expires_ms is not None and self._clock.now_ms() >= record.expires_ms:
            await self.attempts.fail(method, Failure.EXPIRED, client, record.user)
        return self._of_key(key_id, record)

    def _of_key(self, key_id: str, record: KeyRecord) -> Identity:
        return msgspec.structs.replace(
            self.identity(record.user, Method.API_KEY, expires_ms=record.expires_ms), key_id=key_id
        )

    async def _by_token(self, token: str, client: str) -> Identity:
        method = Method.TOKEN
        await self.attempts.hold_back(client)
        try:
            claims = await self.tokens.verified(token)
        except TokenError as error:
            await self.attempts.fail(method, Failure.TOKEN, client, detail=f"token-{error.fault.value}")
        if self.users.is_admin(claims.name):
            await self.attempts.fail(method, Failure.ADMINISTRATOR, client, claims.name)
        return self.identity(claims.name, Method.TOKEN, groups=claims.groups, expires_ms=claims.expires_ms)

    def identity(
        self,
        name: str,
        method: Method,
        *,
        groups: tuple[str, ...] = (),
        expires_ms: int | None = None,
        generation: str = "",
    ) -> Identity:
        return Identity(Principal(f"{USER}{name}"), groups, method.value, expires_ms, generation=generation)

    def session(self, identity: Identity) -> Identity:
        """The identity of a session that begins now: it ends after the longest time of the settings, if not earlier."""
        longest_ms = self._security.session_ms_max
        if not longest_ms:
            return identity
        ends_ms = self._clock.now_ms() + longest_ms
        expires_ms = identity.expires_ms
        return msgspec.structs.replace(identity, expires_ms=ends_ms if expires_ms is None else min(expires_ms, ends_ms))

    # SCRAM, which takes two steps.

    def scram(self, kind: ScramHash, client: str, *, is_private: bool) -> ScramLogin:
        """A login by SCRAM."""
        return ScramLogin(self, kind, client, is_private=is_private)

    def scram_keys(self, kind: ScramHash, user: str) -> ScramKeys:
        """What is stored of a user's password; for an unknown user what no password fits."""
        record = self.users.get(user)
        found = None if record is None else record.keys(kind)
        return found or fake_keys(kind, self._secret, user)

    # What is remembered.

    def _remember(self, credential: Credential, identity: Identity) -> None:
        until_ms = self._clock.monotonic_ms() + CREDENTIALS_REMEMBERED_MS
        self._remembered[self._fingerprint(credential)] = identity, until_ms
        if len(self._remembered) > CREDENTIALS_REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _fingerprint(self, credential: Credential) -> bytes:
        """Of a password or a token: only this process can make it."""
        made = hashlib.blake2b(key=self._secret, digest_size=32)
        if isinstance(credential, Password):
            user = credential.user.encode("utf-8", "surrogatepass")
            made.update(b"p%d:%b" % (len(user), user))
            made.update(credential.password.reveal())
        elif isinstance(credential, Bearer):
            made.update(b"b")
            made.update(credential.token.reveal())
        return made.digest()

    def _changed(self) -> None:
        self.version += 1
        self._remembered.clear()
        for hook in self.on_changed:
            hook()


_READABLE: Final = frozenset({PLAIN, OAUTHBEARER})
"""The mechanisms that send what can be replayed."""


def _mechanisms(wanted: str, *, tokens: bool) -> tuple[str, ...]:
    names = {name.strip().upper() for name in wanted.split(",") if name.strip()}
    unknown = sorted(names.difference(MECHANISMS))
    if unknown:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"security.mechanisms has {', '.join(unknown)}; the mechanisms are {', '.join(MECHANISMS)}",
        )
    return tuple(name for name in MECHANISMS if name in names and (tokens or name != OAUTHBEARER))


def _method_of(credential: Password | Bearer) -> Method:
    return Method.PLAIN if isinstance(credential, Password) else Method.TOKEN


def _stored_kind(record: UserRecord | None) -> ScramHash:
    """A mechanism for which the password is stored."""
    return next((kind for kind in ScramHash if record is not None and record.keys(kind)), ScramHash.SHA_256)
