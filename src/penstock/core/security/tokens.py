"""Tokens (JWT) of an identity provider: checked against its keys, its name and our audience, and against nothing that the token says of itself.

Fails closed: without issuer, audience and keys there are no tokens; only asymmetric algorithms of the list count; a claim that is missing,
or of another type, refuses the token. The keys are fetched when an unknown one is named, at most once a minute, and again every hour.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from penstock.core.security.identity import check_principal
from penstock.errors import PenstockError, Reason
from penstock.limits import (
    JWKS_KEPT_MS_MAX,
    JWKS_KEYS_MAX,
    JWKS_REFRESH_MS,
    JWKS_RETRY_MS,
    PRINCIPAL_CHARS_MAX,
    TOKEN_BYTES_MAX,
    TOKEN_GROUPS_MAX,
)
from penstock.ports import Background, Clock, Report
from penstock.settings import OauthSettings

_FAMILIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""The algorithms that can be allowed, with the type of their keys. There are no others: neither ``none`` nor shared secrets."""
_RSA_BITS_MIN: Final = 2048
_TIME_MAX: Final = 2**53
"""Of a time in seconds: floating-point numbers are exact up to here."""


class Fault(Enum):
    """Why a token is refused, for the log and the metric."""

    ALGORITHM = "algorithm"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    EXPIRED = "expired"
    ISSUER = "issuer"
    MALFORMED = "malformed"
    NO_KEYS = "no-keys"
    NOT_YET_VALID = "not-yet-valid"
    OFF = "off"
    SIGNATURE = "signature"
    TOO_LONG = "too-long"
    UNKNOWN_KEY = "unknown-key"


class TokenError(Exception):
    """The token is refused."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault: Final = fault


class Claims(NamedTuple):
    """What a valid token says."""

    name: str
    groups: tuple[str, ...]
    expires_ms: int


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class Tokens:
    """The tokens of one issuer."""

    def __init__(self, settings: OauthSettings, clock: Clock, background: Background, report: Report) -> None:
        self._settings: Final = settings
        self._clock = clock
        self._background = background
        self._report = report
        self._algorithms: Final = _check(settings)
        self.is_on: Final = bool(settings.issuer)
        self.fetch: Callable[[], Awaitable[bytes]] = _no_source
        """Fetches the provider's keys (JWKS), within bounds; set by the runtime. OSError if that fails."""
        self._keys: list[dict[str, Any]] = []
        self._verifiers: dict[tuple[str | None, str], Any] = {}
        self._fetched_ms: int | None = None
        self._tried_ms: int | None = None
        self._waiting: list[Future[None]] | None = None
        """Who waits for the keys that are being fetched."""

    async def load(self) -> None:
        """Fetch the keys for the first time. A file that cannot be used stops the start; an address that fails is tried again later."""
        if self.is_on:
            await self._refresh()
            if self._settings.jwks_file and self._fetched_ms is None:
                raise PenstockError(
                    Reason.INVALID_CONFIG,
                    f"The keys in oauth.jwks_file = {self._settings.jwks_file} cannot be used: see the log, and correct the file",
                )

    async def verified(self, token: str) -> Claims:
        """What a token says, if all of it is right; else TokenError."""
        if not self.is_on:
            raise TokenError(Fault.OFF)
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenError(Fault.TOO_LONG)
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise TokenError(Fault.MALFORMED) from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms or "crit" in header:
            raise TokenError(Fault.ALGORITHM)
        if key_id is not None and not isinstance(key_id, str):
            raise TokenError(Fault.MALFORMED)
        key = await self._key(key_id, algorithm)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                # The times are checked below, by the clock of this node.
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.PyJWTError as error:
            raise TokenError(_FAULTS.get(type(error).__name__, Fault.SIGNATURE)) from None
        return self._claims(claims)

    def _claims(self, claims: Mapping[str, Any]) -> Claims:
        now, skew = self._clock.now_ms() / 1000, self._settings.clock_skew_seconds
        expires, issued = _time(claims, "exp"), _time(claims, "iat")
        begins = _time(claims, "nbf") if "nbf" in claims else issued
        if now >= expires + skew:
            raise TokenError(Fault.EXPIRED)
        if max(issued, begins) > now + skew:
            raise TokenError(Fault.NOT_YET_VALID)
        if expires <= issued:
            raise TokenError(Fault.CLAIMS)
        name = claims.get(self._settings.principal_claim)
        groups = claims.get(self._settings.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(name, str) or not isinstance(groups, list) or len(groups) > TOKEN_GROUPS_MAX:
            raise TokenError(Fault.CLAIMS)
        if not all(isinstance(group, str) and 0 < len(group) <= PRINCIPAL_CHARS_MAX for group in groups):
            raise TokenError(Fault.CLAIMS)
        try:
            check_principal(name)
        except ValueError:
            raise TokenError(Fault.CLAIMS) from None
        return Claims(name, tuple(groups), int((expires + skew) * 1000))

    # The provider's keys.

    async def _key(self, key_id: str | None, algorithm: str) -> Any:  # noqa: ANN401  a PyJWK
        now_ms = self._clock.monotonic_ms()
        age_ms = JWKS_KEPT_MS_MAX if self._fetched_ms is None else now_ms - self._fetched_ms
        if age_ms >= JWKS_KEPT_MS_MAX:
            await self._refresh()
            if self._fetched_ms is None or self._clock.monotonic_ms() - self._fetched_ms >= JWKS_KEPT_MS_MAX:
                raise TokenError(Fault.NO_KEYS)
        elif age_ms >= JWKS_REFRESH_MS:
            self._begin()
        found = self._verifier(key_id, algorithm)
        if found is None:
            await self._refresh()
            found = self._verifier(key_id, algorithm)
        if found is None:
            raise TokenError(Fault.UNKNOWN_KEY)
        return found

    def _verifier(self, key_id: str | None, algorithm: str) -> Any:  # noqa: ANN401  a PyJWK, or None
        known = self._verifiers.get((key_id, algorithm))
        if known is not None:
            return known
        fitting = [
            key
            for key in self._keys
            if key.get("kty") == _FAMILIES[algorithm]
            and key.get("alg", algorithm) == algorithm
            and key.get("use", "sig") == "sig"
            and key_id in (None, key.get("kid"))
        ]
        # A token that names no key can only mean the only one.
        if len(fitting) != 1:
            return None
        made = _made(fitting[0], algorithm)
        if made is not None:
            self._verifiers[key_id, algorithm] = made
        return made

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried a moment ago. Returns when they are there, or cannot be had."""
        self._begin()
        if self._waiting is not None:
            # One for each, because a client that leaves cancels its own.
            mine: Future[None] = Future()
            self._waiting.append(mine)
            await mine

    def _begin(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._waiting is not None or (self._tried_ms is not None and now_ms - self._tried_ms < JWKS_RETRY_MS):
            return
        self._tried_ms = now_ms
        self._waiting = []
        self._background(self._fetch())

    async def _fetch(self) -> None:
        try:
            keys = msgspec.json.decode(await self.fetch(), type=_KeySet).keys
            if len(keys) > JWKS_KEYS_MAX:
                raise ValueError(f"There are more than {JWKS_KEYS_MAX} keys")
            self._keys, self._verifiers = keys, {}
            self._fetched_ms = self._clock.monotonic_ms()
        except (OSError, ValueError) as error:
            self._report(f"the keys of the identity provider cannot be read: {error}")
        finally:
            waiting, self._waiting = self._waiting or [], None
            for each in waiting:
                if not each.done():
                    each.set_result(None)


_FAULTS: Final = {
    "InvalidAudienceError": Fault.AUDIENCE,
    "InvalidIssuerError": Fault.ISSUER,
    "MissingRequiredClaimError": Fault.CLAIMS,
    "InvalidSubjectError": Fault.CLAIMS,
}


def _time(claims: Mapping[str, Any], name: str) -> float:
    found = claims.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < _TIME_MAX:
        raise TokenError(Fault.CLAIMS)
    return found


def _made(key: dict[str, Any], algorithm: str) -> Any:  # noqa: ANN401  a PyJWK, or None
    import jwt

    try:
        made = jwt.PyJWK.from_dict(key, algorithm)
    except (jwt.PyJWTError, ValueError, KeyError, TypeError):
        return None
    weak = _FAMILIES[algorithm] == "RSA" and made.key.key_size < _RSA_BITS_MIN
    # A private key has no place in a key set; it would be a sign that anyone can sign.
    return None if weak or "d" in key else made


def _check(settings: OauthSettings) -> frozenset[str]:
    """The algorithms; PenstockError if the settings are incomplete or unsafe."""
    sources = [source for source in (settings.jwks_url, settings.jwks_file) if source]
    if not settings.issuer:
        if settings.audience or sources:
            raise _invalid("oauth.issuer is missing: tokens need an issuer, an audience and keys")
        return frozenset()
    if not settings.audience or len(sources) != 1:
        raise _invalid("oauth.issuer needs oauth.audience, and either oauth.jwks_url or oauth.jwks_file")
    if settings.jwks_url and not settings.jwks_url.startswith("https://"):
        raise _invalid(
            "oauth.jwks_url must begin with https://, because anyone who changes the keys on their way can make tokens"
        )
    if not settings.principal_claim:
        raise _invalid("oauth.principal_claim is empty: name the claim with the name of the user, such as sub")
    algorithms = frozenset(name.strip() for name in settings.algorithms.split(",") if name.strip())
    wrong = sorted(algorithms - _FAMILIES.keys())
    if wrong or not algorithms:
        raise _invalid(
            f"oauth.algorithms has {', '.join(wrong) or 'no algorithm'}; the safe ones are {', '.join(_FAMILIES)}"
        )
    return algorithms


def _invalid(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_CONFIG, text)


async def _no_source() -> bytes:
    raise OSError("No source is set")
