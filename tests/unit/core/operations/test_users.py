"""Users and API keys: who may manage them, what stays secret, and that there is always an administrator left."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from penstock.core.security.access import Caller, Principal
from penstock.core.security.identity import Password, Secret
from penstock.errors import PenstockError, Reason
from penstock.limits import API_KEYS_PER_USER_MAX
from penstock.operations import users
from penstock.operations.access import CreateRules, Permission, Rule
from penstock.operations.operation import Action, Resource
from penstock.settings import Authentication, SecuritySettings
from penstock.types import Gateway
from tests.support.kafka_node import KafkaNode

ROOT = Caller(Principal("User:root"), Gateway.HTTP, "10.0.0.1", method="plain")
ANNA = ROOT._replace(principal=Principal("User:anna"))
BERT = ROOT._replace(principal=Principal("User:bert"))


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    """With root, an administrator, and anna and bert, who may do nothing."""
    security = SecuritySettings(authentication=Authentication.REQUIRED)
    async with KafkaNode(tmp_path, security=security) as started:
        scram = await started.broker.authenticator.hashed("root's")
        await started.broker.authenticator.users.create("root", scram, 0, admin=True)
        for name in ("anna", "bert"):
            await started.broker.do(users.CreateUser(name, f"{name}'s"), ROOT)
        yield started


async def log_in(node: KafkaNode, user: str, password: str) -> str:
    credential = Password(user, Secret(password.encode()))
    found = await node.broker.authenticator.authenticate(credential, "10.0.0.1", is_private=True)
    return found.principal


async def refusal(node: KafkaNode, asked: Any, caller: Caller) -> Reason:
    with pytest.raises(PenstockError) as refused:
        await node.broker.do(asked, caller)
    return refused.value.reason


async def test_a_new_user_can_log_in_and_is_listed_without_anything_secret(node: KafkaNode) -> None:
    assert await log_in(node, "anna", "anna's") == "User:anna"
    found = await node.broker.do(users.ListUsers(), ROOT)
    both = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    now = node.clock.now_ms()
    assert found == (
        users.UserInfo("anna", False, now, both, 0),
        users.UserInfo("bert", False, now, both, 0),
        users.UserInfo("root", True, 0, both, 0),
    )


async def test_a_name_is_taken_once(node: KafkaNode) -> None:
    assert await refusal(node, users.CreateUser("anna", "x"), ROOT) is Reason.USER_ALREADY_EXISTS
    outcomes = await asyncio.gather(
        *(node.broker.do(users.CreateUser("carl", f"{number}"), ROOT) for number in range(3)), return_exceptions=True
    )
    assert [isinstance(each, PenstockError) for each in outcomes].count(False) == 1


@pytest.mark.parametrize("name", ["", "*", "ANONYMOUS", "a b", "a/b", "a:b", "a,b", ".a", "a\n", "x" * 200, "\u0627a"])
async def test_a_name_that_could_be_mistaken_is_refused(node: KafkaNode, name: str) -> None:
    assert await refusal(node, users.CreateUser(name, "x"), ROOT) is Reason.INVALID_REQUEST


@pytest.mark.parametrize("password", ["", "psk_x", "x" * 300, "a\nb"])
async def test_a_password_that_could_be_mistaken_is_refused_without_showing_it(node: KafkaNode, password: str) -> None:
    for asked in (users.CreateUser("carl", password), users.SetPassword("anna", password)):
        with pytest.raises(PenstockError) as refused:
            await node.broker.do(asked, ROOT)
        assert refused.value.reason is Reason.INVALID_REQUEST
        assert len(password) < 4 or password not in refused.value.text


async def test_users_without_rights_manage_nobody_but_themselves(node: KafkaNode) -> None:
    denied = Reason.CLUSTER_AUTHORIZATION_FAILED
    for asked in (
        users.CreateUser("carl", "x"),
        users.DeleteUser("bert"),
        users.DeleteUser("anna"),
        users.SetPassword("bert", "x"),
        users.CreateKey("bert"),
        users.RevokeKey("bert", "x"),
        users.ListKeys("bert"),
        users.ListKeys(),
        users.ListUsers(),
        users.DescribeScram(),
        users.AlterScram("anna", {}),
    ):
        assert await refusal(node, asked, ANNA) is denied, asked
    made = await node.broker.do(users.CreateKey("anna", "mine"), ANNA)
    [key] = await node.broker.do(users.ListKeys("anna"), ANNA)
    assert (key.id, key.name) == (made.id, "mine")
    await node.broker.do(users.RevokeKey("anna", made.id), ANNA)
    await node.broker.do(users.SetPassword("anna", "another"), ANNA)
    assert await log_in(node, "anna", "another") == "User:anna"
    with pytest.raises(PenstockError):
        await log_in(node, "anna", "anna's")


@pytest.mark.parametrize("method", ["api-key", "token", "certificate", ""])
async def test_what_is_no_password_gives_no_right_to_a_new_one(node: KafkaNode, method: str) -> None:
    caller = ANNA._replace(method=method)
    # What was decided for the password is not used for the other.
    await node.broker.do(users.CreateKey("anna"), ANNA)
    for asked in (users.SetPassword("anna", "x"), users.CreateKey("anna")):
        assert await refusal(node, asked, caller) is Reason.CLUSTER_AUTHORIZATION_FAILED


async def test_only_administrators_make_and_change_administrators(node: KafkaNode) -> None:
    rule = Rule("User:anna", Permission.ALLOW, Action.ALTER, Resource.CLUSTER, "kafka-cluster")
    await node.broker.do(CreateRules((rule,)), ROOT)
    await node.broker.do(users.CreateUser("carl", "x"), ANNA)
    await node.broker.do(users.SetPassword("bert", "x"), ANNA)
    for asked in (
        users.CreateUser("dora", "x", admin=True),
        users.SetPassword("root", "x"),
        users.DeleteUser("root", force=True),
        users.CreateKey("root"),
        users.AlterScram("root", {"SCRAM-SHA-256": users.ScramCredential(b"s", 4096, bytes(32))}),
    ):
        assert await refusal(node, asked, ANNA) is Reason.CLUSTER_AUTHORIZATION_FAILED, asked
    assert await log_in(node, "root", "root's") == "User:root"
    await node.broker.do(users.CreateUser("dora", "x", admin=True), ROOT)


async def test_an_administrator_may_do_everything_at_once_and_nothing_once_deleted(node: KafkaNode) -> None:
    await node.broker.do(users.CreateUser("dora", "x", admin=True), ROOT)
    dora = ROOT._replace(principal=Principal("User:dora"))
    assert await node.broker.do(users.ListUsers(), dora)
    await node.broker.do(users.DeleteUser("dora"), ROOT)
    assert await refusal(node, users.ListUsers(), dora) is Reason.CLUSTER_AUTHORIZATION_FAILED


async def test_the_last_administrator_is_deleted_only_by_force(node: KafkaNode) -> None:
    assert await refusal(node, users.DeleteUser("root"), ROOT) is Reason.POLICY_VIOLATION
    await node.broker.do(users.CreateUser("dora", "x", admin=True), ROOT)
    outcomes = await asyncio.gather(
        *(node.broker.do(users.DeleteUser(name), ROOT) for name in ("root", "dora")), return_exceptions=True
    )
    assert [isinstance(each, PenstockError) for each in outcomes] == [False, True]
    dora = ROOT._replace(principal=Principal("User:dora"))
    await node.broker.do(users.DeleteUser("dora", force=True), dora)
    assert not any(record.admin for _, record in node.broker.authenticator.users.items())


async def test_a_deleted_user_takes_its_keys_along(node: KafkaNode) -> None:
    for _ in range(3):
        await node.broker.do(users.CreateKey("anna"), ROOT)
    await node.broker.do(users.CreateKey("bert"), ROOT)
    await node.broker.do(users.DeleteUser("anna"), ROOT)
    assert [key.user for key in await node.broker.do(users.ListKeys(), ROOT)] == ["bert"]
    assert node.broker.authenticator.keys.stored_keys("anna") == []
    assert await refusal(node, users.DeleteUser("anna"), ROOT) is Reason.UNKNOWN_USER


async def test_keys_have_bounds(node: KafkaNode) -> None:
    now = node.clock.now_ms()
    assert await refusal(node, users.CreateKey("anna", "", now), ROOT) is Reason.INVALID_REQUEST
    assert await refusal(node, users.CreateKey("anna", "x" * 200), ROOT) is Reason.INVALID_REQUEST
    assert await refusal(node, users.CreateKey("nobody"), ROOT) is Reason.UNKNOWN_USER
    for _ in range(API_KEYS_PER_USER_MAX):
        await node.broker.do(users.CreateKey("anna"), ANNA)
    assert await refusal(node, users.CreateKey("anna"), ANNA) is Reason.POLICY_VIOLATION
    await node.broker.do(users.CreateKey("bert"), ROOT)
    assert await refusal(node, users.RevokeKey("anna", "x"), ROOT) is Reason.UNKNOWN_API_KEY


async def test_without_authentication_there_are_no_users(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        for asked in (users.CreateUser("a", "x"), users.ListUsers(), users.ListKeys(), users.DescribeScram()):
            assert await refusal(node, asked, ROOT) is Reason.SECURITY_DISABLED


def test_no_operation_and_no_result_shows_a_secret() -> None:
    shown = (
        users.CreateUser("anna", "marked"),
        users.SetPassword("anna", "marked"),
        users.NewKey("id", "marked"),
        users.ScramCredential(b"marked", 4096, b"marked"),
        users.AlterScram("anna", {"SCRAM-SHA-256": users.ScramCredential(b"marked", 4096, b"marked")}),
    )
    assert "marked" not in repr(shown)
    assert b"marked" in msgspec.msgpack.encode(shown[0])


async def test_a_right_on_the_cluster_is_not_enough_to_become_a_super_user_of_the_settings(tmp_path: Path) -> None:
    security = SecuritySettings(authentication=Authentication.REQUIRED, super_users="User:boss,User:chief,User:anna")
    async with KafkaNode(tmp_path, security=security) as node:
        await node.broker.do(users.CreateUser("chief", "chief's"), ANNA)
        allowed = Rule(str(BERT.principal), Permission.ALLOW, Action.ALTER, Resource.CLUSTER, "kafka-cluster")
        await node.broker.do(CreateRules((allowed,)), ANNA)
        made = users.ScramCredential(b"salt" * 4, 4096, bytes(32))
        for asked in (
            users.CreateUser("boss", "mine"),
            users.AlterScram("boss", {"SCRAM-SHA-256": made}),
            users.SetPassword("chief", "mine"),
            users.AlterScram("chief", {"SCRAM-SHA-256": made}),
            users.CreateKey("chief"),
            users.DeleteUser("chief"),
        ):
            assert await refusal(node, asked, BERT) is Reason.CLUSTER_AUTHORIZATION_FAILED, asked
        assert await log_in(node, "chief", "chief's") == "User:chief"
