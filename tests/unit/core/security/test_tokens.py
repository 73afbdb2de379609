"""Tokens: only those of the issuer, for this audience, at this time, signed with one of its keys."""

import base64
import json
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.core.security.identity import Bearer, Identity, Secret
from penstock.errors import PenstockError, Reason
from penstock.limits import JWKS_KEPT_MS_MAX, JWKS_REFRESH_MS, JWKS_RETRY_MS
from penstock.settings import OauthSettings
from tests.support.kafka_wire import until
from tests.support.tokens import AUDIENCE, ISSUER, Provider
from tests.unit.core.security.world import ADDRESS, World, with_tokens


async def by_token(world: World, token: str) -> Identity:
    return await world.authenticator.authenticate(Bearer(Secret(token.encode())), ADDRESS, is_private=True)


def token(world: World, algorithm: str = "RS256", **claims: Any) -> str:
    assert world.provider is not None
    return world.provider.token(algorithm, now=world.clock.now_ms() / 1000, **claims)


async def refused(world: World, made: str, why: str) -> None:
    text = (await world.refusal(by_token(world, made))).text
    assert text == "Authentication failed: check the user and the password, or the API key or token"
    assert world.failures() == {("token", f"token-{why}"): 1}


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_gives_its_subject_its_groups_and_its_end(algorithm: str) -> None:
    world = await with_tokens()
    found = await by_token(world, token(world, algorithm, groups=["admins", "ops"]))
    assert (found.principal, found.method, found.groups) == ("User:anna", "token", ("admins", "ops"))
    assert found.expires_ms == world.clock.now_ms() // 1000 * 1000 + 330_000
    assert world.authenticator.is_current(found)
    world.clock.advance(331_000)
    assert not world.authenticator.is_current(found)


async def test_name_and_groups_come_from_the_claims_of_the_settings() -> None:
    world = await with_tokens(principal_claim="email", groups_claim="roles")
    found = await by_token(world, token(world, email="anna@example.com", roles="one", groups=["ignored"]))
    assert (found.principal, found.groups) == ("User:anna@example.com", ("one",))


async def test_a_checked_token_is_known_for_some_minutes() -> None:
    world = await with_tokens()
    made = token(world)
    found = await by_token(world, made)
    assert world.authenticator.remembered(Bearer(Secret(made.encode())), is_private=True) == found


def now(world: World, seconds: int = 0) -> int:
    return world.clock.now_ms() // 1000 + seconds


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://other.example.com"}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "claims"),
        ({"iss": None}, "claims"),
        ({"exp": None}, "claims"),
        ({"iat": None}, "claims"),
        ({"sub": None}, "claims"),
        ({"sub": ""}, "claims"),
        ({"sub": "*"}, "claims"),
        ({"sub": "ANONYMOUS"}, "claims"),
        ({"sub": "a\nb"}, "claims"),
        ({"sub": 7}, "claims"),
        ({"groups": 7}, "claims"),
        ({"groups": [7]}, "claims"),
        ({"groups": ["x"] * 201}, "claims"),
        ({"exp": 1_000}, "expired"),
        ({"exp": True}, "claims"),
        ({"exp": "soon"}, "claims"),
        ({"exp": float("inf")}, "claims"),
        ({"iat": 2_000_000_000, "exp": 2_000_000_300}, "not-yet-valid"),
        ({"nbf": 2_000_000_000}, "not-yet-valid"),
        ({"nbf": "x"}, "claims"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(claims: dict[str, Any], why: str) -> None:
    world = await with_tokens()
    await refused(world, token(world, **claims), why)


async def test_clocks_may_differ_by_the_skew_of_the_settings() -> None:
    world = await with_tokens(clock_skew_seconds=10)
    assert await by_token(world, token(world, iat=now(world, 5), exp=now(world, 100)))
    assert await by_token(world, token(world, iat=now(world, -100), exp=now(world, -5)))
    await refused(world, token(world, iat=now(world, -100), exp=now(world, -15)), "expired")


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


async def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", "nOnE"):
        world = await with_tokens()
        claims = jwt.decode(token(world), options={"verify_signature": False})
        await refused(world, unsigned({"alg": algorithm, "kid": "rs256"}, claims), "algorithm")


async def test_the_public_key_is_no_shared_secret() -> None:
    world = await with_tokens()
    assert world.provider is not None
    claims = jwt.decode(token(world), options={"verify_signature": False})
    public = world.provider.keys["RS256"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = unsigned({"alg": "HS256", "kid": "rs256"}, claims).rpartition(".")[0]
    mac = jwt.get_algorithm_by_name("HS256").sign(head.encode(), pem)
    await refused(world, f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}", "algorithm")


@pytest.mark.parametrize("made", ["", "x", "a.b", "a.b.c", "....", "{}.{}.{}", "é.é.é", "a" * 9_000])
async def test_what_is_no_token_is_refused(made: str) -> None:
    world = await with_tokens()
    await refused(world, made, "too-long" if len(made) > 8_192 else "malformed")


async def test_a_token_that_another_key_signed_is_refused() -> None:
    world = await with_tokens()
    await refused(world, Provider(number=1).token("RS256", now=now(world)), "signature")


async def test_a_token_that_was_changed_is_refused() -> None:
    world = await with_tokens()
    head, claims, signature = token(world).split(".")
    changed = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed["sub"] = "root"
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
    await refused(world, f"{head}.{forged}.{signature}", "signature")


async def test_a_token_with_a_critical_header_is_refused() -> None:
    world = await with_tokens()
    assert world.provider is not None
    claims = jwt.decode(token(world), options={"verify_signature": False})
    made = jwt.encode(claims, world.provider.keys["RS256"], "RS256", headers={"kid": "rs256", "crit": ["exp"]})
    await refused(world, made, "malformed")


async def test_an_algorithm_that_is_not_in_the_list_is_refused() -> None:
    world = await with_tokens(algorithms="ES256")
    await refused(world, token(world, "RS256"), "algorithm")


async def test_a_key_of_another_kind_than_the_algorithm_is_refused() -> None:
    world = await with_tokens()
    assert world.provider is not None
    claims = jwt.decode(token(world), options={"verify_signature": False})
    made = jwt.encode(claims, world.provider.keys["RS256"], "RS256", headers={"kid": "es256"})
    await refused(world, made, "unknown-key")


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_a_short_key_is_not_used() -> None:
    provider = Provider()
    provider.keys["RS256"] = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    world = await with_tokens(provider)
    await refused(world, token(world), "unknown-key")


async def test_a_token_that_names_no_key_needs_a_provider_with_one_of_its_kind() -> None:
    world = await with_tokens()
    assert world.provider is not None
    claims = jwt.decode(token(world), options={"verify_signature": False})
    assert await by_token(world, jwt.encode(claims, world.provider.keys["RS256"], "RS256"))


async def test_an_administrator_of_the_store_is_not_reached_by_a_token() -> None:
    world = await with_tokens()
    found = await by_token(world, token(world))
    await world.user("anna", admin=True)
    assert not world.authenticator.is_current(found)
    await world.refusal(by_token(world, token(world)))
    assert world.failures() == {("token", "administrator"): 1}


# The provider's keys.


class Fetches:
    """Counts fetches, and fails when told."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self.fails = False
        self._world = world
        world.authenticator.tokens.fetch = self

    async def __call__(self) -> bytes:
        self.count += 1
        if self.fails:
            raise OSError("no route")
        assert self._world.provider is not None
        return self._world.provider.key_set()


async def test_a_new_key_is_fetched_when_a_token_names_it_but_not_more_than_once_a_minute() -> None:
    world = await with_tokens()
    fetches = Fetches(world)
    assert world.provider is not None
    claims = jwt.decode(token(world), options={"verify_signature": False})

    def named(key_id: str) -> str:
        assert world.provider is not None
        return jwt.encode(claims, world.provider.keys["RS256"], "RS256", headers={"kid": key_id})

    for number in range(5):
        await world.refusal(by_token(world, named(f"unknown-{number}")))
    assert fetches.count == 0
    world.clock.advance(JWKS_RETRY_MS)
    for number in range(5):
        await world.refusal(by_token(world, named(f"unknown-{number}")))
    assert fetches.count == 1
    world.provider = Provider(number=1)
    world.clock.advance(JWKS_RETRY_MS)
    fresh = world.provider.token("RS256", now=now(world))
    # The key has the same name, so the old one is used until the keys are fetched for another reason.
    await world.refusal(by_token(world, fresh))
    await world.refusal(by_token(world, named("unknown")))
    assert fetches.count == 2
    assert (await by_token(world, fresh)).principal == "User:anna"


async def test_keys_are_fetched_again_in_the_background_and_a_failure_does_not_end_the_old_ones_at_once() -> None:
    world = await with_tokens()
    fetches = Fetches(world)
    fetches.fails = True
    world.clock.advance(JWKS_REFRESH_MS)
    assert await by_token(world, token(world))
    await until(lambda: fetches.count)
    assert await by_token(world, token(world, sub="bert"))
    assert fetches.count == 1
    assert "no route" in world.reports[0]
    world.clock.advance(JWKS_KEPT_MS_MAX)
    await world.refusal(by_token(world, token(world)))
    assert world.failures()[("token", "token-no-keys")] == 1
    fetches.fails = False
    world.clock.advance(JWKS_RETRY_MS)
    assert await by_token(world, token(world))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b'{"keys": [' + b"{}," * 200 + b"{}]}"]
)
async def test_keys_that_cannot_be_read_are_reported_and_admit_nobody(content: bytes) -> None:
    world = await with_tokens()
    made = token(world)

    async def fetch() -> bytes:
        return content

    fresh = World(oauth=OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://x/"))
    fresh.authenticator.tokens.fetch = fetch
    await fresh.loaded()
    assert "the keys of the identity provider cannot be read" in fresh.reports[0]
    await fresh.refusal(by_token(fresh, made))


async def test_a_key_file_that_cannot_be_used_stops_the_start() -> None:
    world = World(oauth=OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file="/nowhere"))
    with pytest.raises(PenstockError, match="jwks_file") as stopped:
        await world.loaded()
    assert stopped.value.reason is Reason.INVALID_CONFIG


COMPLETE = OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example.com/keys")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"issuer": ""}, "issuer is missing"),
        ({"audience": ""}, "audience"),
        ({"jwks_url": ""}, "jwks_url or oauth.jwks_file"),
        ({"jwks_file": "/keys"}, "either oauth.jwks_url or"),
        ({"jwks_url": "http://login.example.com/keys"}, "https://"),
        ({"algorithms": "RS256,HS256"}, "HS256"),
        ({"algorithms": "none"}, "none"),
        ({"algorithms": " , "}, "no algorithm"),
        ({"principal_claim": ""}, "principal_claim"),
    ],
)
def test_incomplete_or_unsafe_settings_stop_the_start(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(PenstockError, match=text) as stopped:
        World(oauth=msgspec.structs.replace(COMPLETE, **changes))
    assert stopped.value.reason is Reason.INVALID_CONFIG


async def test_without_an_issuer_there_are_no_tokens() -> None:
    world = await World().loaded()
    assert "OAUTHBEARER" not in world.authenticator.mechanisms(is_private=True)
    await refused(world, Provider().token(), "off")
    assert "OAUTHBEARER" in (await with_tokens()).authenticator.mechanisms(is_private=True)
