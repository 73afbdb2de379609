"""Credentials become identities, and whatever proves nothing is refused late, counted, and with one text."""

import asyncio
import base64
import hashlib
import hmac

import pytest

from penstock.core.security.authenticator import Authenticator
from penstock.core.security.identity import NOBODY, Bearer, Certificate, Identity, Password, Secret
from penstock.core.security.scram import ScramHash
from penstock.errors import PenstockError, Reason
from penstock.limits import CREDENTIALS_REMEMBERED_MS, LOGIN_DELAY_MS, LOGIN_FAILURES_FREE
from penstock.settings import Settings
from tests.unit.core.security.world import ADDRESS, World

FAILED = "Authentication failed: check the user and the password, or the API key or token"


async def scram(
    world: World, user: str, password: str, kind: ScramHash = ScramHash.SHA_256, *, is_private: bool = True
) -> Identity:
    """A whole login by SCRAM, as a client makes it."""
    login = world.authenticator.scram(kind, ADDRESS, is_private=is_private)
    bare = f"n={user},r=abc"
    answer = (await login.first(f"n,,{bare}".encode())).decode()
    fields = dict(part.split("=", 1) for part in answer.split(","))
    salted = hashlib.pbkdf2_hmac(kind.digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", kind.digest)
    without_proof = f"c=biws,r={fields['r']}"
    message = f"{bare},{answer},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(kind.digest, client_key).digest(), message, kind.digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    identity, server = await login.final(f"{without_proof},p={proof}".encode())
    server_key = hmac.digest(salted, b"Server Key", kind.digest)
    assert server == b"v=" + base64.b64encode(hmac.digest(server_key, message, kind.digest))
    return identity


async def test_the_right_password_gives_the_identity_of_its_user() -> None:
    world = await World().loaded()
    await world.user()
    found = await world.log_in()
    assert (found.principal, found.method, found.expires_ms, found.groups) == ("User:anna", "plain", None, ())
    assert world.pauses == []
    assert world.failures() == {}


async def test_a_wrong_password_and_an_unknown_user_get_the_same_late_answer() -> None:
    world = await World().loaded()
    await world.user()
    wrong = await world.refusal(world.log_in(password="wrong"))
    nobody = await world.refusal(world.log_in(user="nobody"))
    assert wrong.text == nobody.text == FAILED
    assert world.pauses == [LOGIN_DELAY_MS] * 2
    assert world.failures() == {("plain", "wrong-password"): 1, ("plain", "unknown-user"): 1}
    # The password of a user that does not exist is hashed as well.
    assert world.hashes == 1 + 2


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("a\0b", "x"), ("anna", ""), ("anna", "x" * 300)])
async def test_a_malformed_password_is_refused(user: str, password: str) -> None:
    world = await World().loaded()
    await world.user()
    assert (await world.refusal(world.log_in(user, password))).text == FAILED
    assert world.failures() == {("plain", "malformed"): 1}


async def test_bytes_that_are_no_text_are_refused() -> None:
    world = await World().loaded()
    for credential in (Password("anna", Secret(b"\xff")), Bearer(Secret(b"\xff"))):
        work = world.authenticator.authenticate(credential, ADDRESS, is_private=True)
        assert (await world.refusal(work)).text == FAILED


async def test_a_user_without_a_password_cannot_use_one() -> None:
    world = await World().loaded()
    await world.authenticator.users.create("robot", {}, 0)
    await world.refusal(world.log_in("robot", ""))
    await world.refusal(world.log_in("robot", "x"))
    with pytest.raises(PenstockError):
        await scram(world, "robot", "x")


@pytest.mark.parametrize("kind", ScramHash)
async def test_scram_admits_the_right_password_alone(kind: ScramHash) -> None:
    world = await World().loaded()
    await world.user()
    found = await scram(world, "anna", "right", kind)
    assert (found.principal, found.method) == ("User:anna", kind.value.lower())
    assert world.authenticator.is_current(found)
    wrong = await world.refusal(scram(world, "anna", "wrong", kind))
    nobody = await world.refusal(scram(world, "nobody", "right", kind))
    assert wrong.text == nobody.text == FAILED
    method = kind.value.lower()
    assert world.failures() == {(method, "wrong-password"): 1, (method, "unknown-user"): 1}


async def test_a_password_that_changes_between_the_steps_of_scram_is_refused() -> None:
    world = await World().loaded()
    await world.user()
    before = world.authenticator.scram(ScramHash.SHA_256, ADDRESS, is_private=True)
    await before.first(b"n,,n=anna,r=abc")
    await world.authenticator.users.delete("anna", spare_last_admin=False)
    await world.refusal(before.final(b"c=biws,r=abc,p=AAAA"))


async def test_what_others_can_read_is_refused_before_it_is_looked_at() -> None:
    world = await World().loaded()
    await world.user()
    refused = await world.refusal(world.log_in(is_private=False))
    assert "Connect with TLS" in refused.text
    token = world.authenticator.authenticate(Bearer(Secret(b"x.y.z")), ADDRESS, is_private=False)
    await world.refusal(token)
    await world.refusal(scram(world, "anna", "right", is_private=False))
    assert world.hashes == 1
    # What was checked on another connection does not help.
    await world.log_in()
    await world.refusal(world.log_in(is_private=False))


async def test_with_insecure_scram_alone_is_allowed_where_others_can_read() -> None:
    world = await World(insecure=True).loaded()
    await world.user()
    assert world.authenticator.mechanisms(is_private=False) == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert (await scram(world, "anna", "right", is_private=False)).principal == "User:anna"
    await world.refusal(world.log_in(is_private=False))


async def test_the_mechanisms_are_those_of_the_settings() -> None:
    world = await World(mechanisms="scram-sha-512, plain").loaded()
    assert world.authenticator.mechanisms(is_private=True) == ("PLAIN", "SCRAM-SHA-512")
    assert world.authenticator.mechanisms(is_private=False) == ()
    with pytest.raises(PenstockError, match="GSSAPI") as refused:
        World(mechanisms="PLAIN,GSSAPI")
    assert refused.value.reason is Reason.INVALID_CONFIG


async def test_a_checked_password_is_known_for_some_minutes_and_not_after_any_change() -> None:
    world = await World().loaded()
    await world.user()
    credential = Password("anna", Secret(b"right"))
    assert world.authenticator.remembered(credential, is_private=True) is None
    found = await world.log_in()
    assert world.authenticator.remembered(credential, is_private=True) == found
    assert world.authenticator.remembered(Password("anna", Secret(b"wrong")), is_private=True) is None
    assert world.authenticator.remembered(Bearer(Secret(b"right")), is_private=True) is None
    assert world.authenticator.remembered(credential, is_private=False) is None
    hashes = world.hashes
    assert await world.log_in() == found
    assert world.hashes == hashes
    world.clock.advance(CREDENTIALS_REMEMBERED_MS)
    assert world.authenticator.remembered(credential, is_private=True) is None
    await world.log_in()
    await world.user("bert")
    assert world.authenticator.remembered(credential, is_private=True) is None


async def test_after_too_many_failures_an_attempt_waits_before_it_is_looked_at_and_can_still_succeed() -> None:
    world = await World().loaded()
    await world.user()
    for _ in range(LOGIN_FAILURES_FREE):
        await world.refusal(world.log_in(password="wrong"))
    hashes, logged = world.hashes, len(world.reports)
    held_back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits: list[int] = []

    async def pause(milliseconds: int) -> None:
        waits.append(milliseconds)
        await held_back

    world.authenticator.attempts.pause = pause
    attempt = asyncio.ensure_future(world.log_in())
    await asyncio.sleep(0)
    assert waits == [2 * LOGIN_DELAY_MS]
    assert world.hashes == hashes
    held_back.set_result(None)
    assert (await attempt).principal == "User:anna"
    with pytest.raises(PenstockError):
        await world.log_in(password="wrong")
    assert len(world.reports) == logged


async def test_addresses_of_one_network_of_ipv6_count_together() -> None:
    world = await World().loaded()
    await world.user()
    for number in range(LOGIN_FAILURES_FREE):
        await world.refusal(world.log_in(user="nobody", client=f"2001:db8::{number}"))
    before = len(world.pauses)
    await world.log_in(client="2001:db8::ffff")
    assert len(world.pauses) == before + 1
    await world.log_in(password="right", client="2001:db8:1::1")
    assert len(world.pauses) == before + 1


async def test_a_changed_password_ends_what_the_old_one_began() -> None:
    world = await World().loaded()
    await world.user()
    plain, by_scram = await world.log_in(), await scram(world, "anna", "right")
    changes = []
    world.authenticator.on_changed.append(lambda: changes.append(world.authenticator.version))
    await world.set_password("anna", "another")
    assert len(changes) == 1
    assert not world.authenticator.is_current(plain)
    assert not world.authenticator.is_current(by_scram)
    await world.refusal(world.log_in())
    assert world.authenticator.is_current(await world.log_in(password="another"))


async def test_a_deleted_user_is_gone_at_once_and_does_not_return_with_another_of_its_name() -> None:
    world = await World().loaded()
    await world.user()
    found = await world.log_in()
    users = world.authenticator.users
    await users.delete("anna", spare_last_admin=True)
    assert not world.authenticator.is_current(found)
    await world.refusal(world.log_in())
    await world.user()
    assert not world.authenticator.is_current(found)
    assert world.authenticator.is_current(await world.log_in())


async def test_another_node_knows_of_changes_at_once() -> None:
    first = await World().loaded()
    second = await World(first.store).loaded()
    await first.user()
    found = await second.log_in()
    await first.authenticator.users.delete("anna", spare_last_admin=False)
    assert not second.authenticator.is_current(found)
    await second.refusal(second.log_in())


# API keys.


async def test_an_api_key_is_its_owner_until_it_is_revoked() -> None:
    world = await World().loaded()
    await world.user()
    keys = world.authenticator.keys
    key_id, key = await keys.create("anna", "for tests", 0, None)
    bearer = Bearer(Secret(key.encode()))
    found = await world.authenticator.authenticate(bearer, ADDRESS, is_private=True)
    assert (found.principal, found.method, found.key_id) == ("User:anna", "api-key", key_id)
    assert await world.log_in("anna", key) == await world.log_in(key_id, key) == found
    assert world.authenticator.remembered(bearer, is_private=True) == found
    await keys.revoke(key_id, "anna")
    assert not world.authenticator.is_current(found)
    assert world.authenticator.remembered(bearer, is_private=True) is None
    await world.refusal(world.authenticator.authenticate(bearer, ADDRESS, is_private=True))
    assert world.failures() == {("api-key", "wrong-key"): 1}


async def test_nothing_but_the_whole_key_is_right() -> None:
    world = await World().loaded()
    await world.user()
    await world.user("bert")
    key_id, key = await world.authenticator.keys.create("anna", "", 0, None)
    other_id, _ = await world.authenticator.keys.create("bert", "", 0, None)
    for wrong in (key[:-1], key + "A", f"psk_{key_id}_", "psk_", key.replace(key_id, other_id), f"psk_{key_id}"):
        work = world.authenticator.authenticate(Bearer(Secret(wrong.encode())), ADDRESS, is_private=True)
        assert (await world.refusal(work)).text == FAILED
    await world.refusal(world.log_in("bert", key))


async def test_a_key_ends_at_its_time() -> None:
    world = await World().loaded()
    await world.user()
    now = world.clock.now_ms()
    _, key = await world.authenticator.keys.create("anna", "", now, now + 1_000)
    found = await world.log_in("anna", key)
    assert found.expires_ms == now + 1_000
    world.clock.advance(1_000)
    assert not world.authenticator.is_current(found)
    await world.refusal(world.log_in("anna", key))
    assert world.failures() == {("api-key", "expired"): 1}


async def test_a_key_stays_when_the_password_changes_and_ends_with_its_user() -> None:
    world = await World().loaded()
    await world.user()
    _, key = await world.authenticator.keys.create("anna", "", 0, None)
    found = await world.log_in("anna", key)
    await world.set_password("anna", "another")
    assert world.authenticator.is_current(found)
    # The key itself is still in the store, as after a crash between two changes.
    await world.authenticator.users.delete("anna", spare_last_admin=False)
    assert not world.authenticator.is_current(found)
    await world.user()
    assert not world.authenticator.is_current(found)
    await world.refusal(world.log_in("anna", key))


async def test_the_store_holds_neither_a_password_nor_a_key() -> None:
    world = await World().loaded()
    await world.user("anna", "a-marked-password")
    _, key = await world.authenticator.keys.create("anna", "", 0, None)
    stored = b"".join(entry.value for entry in (await world.store.range("security/")).entries)
    assert b"generation" in stored
    assert b"a-marked-password" not in stored
    assert key.rpartition("_")[2].encode() not in stored


# Certificates, sessions, and nobody.


async def test_a_certificate_is_the_name_in_it_unless_that_is_an_administrator() -> None:
    world = await World().loaded()
    await world.user("root", admin=True)
    found = await world.authenticator.authenticate(Certificate("CN=anna,O=Acme"), ADDRESS, is_private=True)
    assert (found.principal, found.method) == ("User:CN=anna,O=Acme", "certificate")
    assert world.authenticator.is_current(found)
    for name in ("root", "*", "ANONYMOUS", "", "a\nb"):
        with pytest.raises(PenstockError) as refused:
            await world.authenticator.authenticate(Certificate(name), ADDRESS, is_private=True)
        assert refused.value.text == FAILED
    await world.user("CN=anna;O=Acme", admin=True)
    semicolon = await world.authenticator.authenticate(Certificate("bert"), ADDRESS, is_private=True)
    await world.user("bert", admin=True)
    assert not world.authenticator.is_current(semicolon)


async def test_a_session_has_a_longest_time() -> None:
    world = await World(session_ms_max=5_000).loaded()
    await world.user()
    found = await world.log_in()
    assert found.expires_ms == world.clock.now_ms() + 5_000
    world.clock.advance(5_000)
    assert not world.authenticator.is_current(found)
    again = await world.log_in()
    assert world.authenticator.is_current(again)
    # One that begins with a known password has all of its time, too.
    world.clock.advance(3_000)
    assert (await world.log_in()).expires_ms == world.clock.now_ms() + 5_000


async def test_nobody_is_current_only_without_authentication() -> None:
    world = await World().loaded()
    assert not world.authenticator.is_current(NOBODY)
    off = Authenticator(
        Settings(),
        world.store,
        world.clock,
        world.authenticator.entropy,
        world.meters,
        background=lambda _work: None,
        off_loop=lambda work, done: (work(), done()),
        report=world.reports.append,
    )
    await off.load()
    assert off.is_current(NOBODY)
    assert not off.is_required


async def test_the_log_shows_no_secret_and_no_name_that_may_be_one() -> None:
    world = await World().loaded()
    await world.user()
    await world.refusal(world.log_in("anna", "marked-password"))
    await world.refusal(world.log_in("marked-password", "x"))
    await world.refusal(world.authenticator.authenticate(Bearer(Secret(b"marked-token")), ADDRESS, is_private=True))
    assert len(world.reports) == 3
    assert "user=anna" in world.reports[0]
    assert not any("marked" in text for text in [*world.reports, repr(world.failures())])
    assert "marked" not in repr(Password("anna", Secret(b"marked")))
