"""DescribeUserScramCredentials and AlterUserScramCredentials, with Kafka's codes."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.security.access import Principal
from penstock.core.security.identity import Password, Secret
from penstock.errors import PenstockError
from penstock.limits import ALTERED_CREDENTIALS_MAX
from penstock.settings import Authentication, SecuritySettings
from penstock.wire.kafka.alter_user_scram_credentials_generated import AlterUserScramCredentialsRequest
from penstock.wire.kafka.alter_user_scram_credentials_generated import (
    AlterUserScramCredentialsRequestDeletion as Deletion,
)
from penstock.wire.kafka.alter_user_scram_credentials_generated import (
    AlterUserScramCredentialsRequestUpsertion as Upsertion,
)
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_user_scram_credentials_generated import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUser,
)
from tests.support.kafka_node import KafkaNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    security = SecuritySettings(authentication=Authentication.REQUIRED, super_users="User:root")
    async with KafkaNode(tmp_path, security=security) as started:
        started.caller = started.caller._replace(principal=Principal("User:root"))
        yield started


def upsertion(name: str, password: str = "secret", mechanism: int = 1, iterations: int = 4096) -> Upsertion:
    digest = "sha256" if mechanism == 1 else "sha512"
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", min(iterations, 20_000) or 1)
    return Upsertion(name, mechanism, iterations, b"salt", salted)


async def alter(node: KafkaNode, *changes: Deletion | Upsertion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        [each for each in changes if isinstance(each, Deletion)],
        [each for each in changes if isinstance(each, Upsertion)],
    )
    answer = await node.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, 0)
    assert len({each.user for each in answer.results}) == len(answer.results)
    assert all((each.error_message is None) == (each.error_code == 0) for each in answer.results)
    return {each.user: each.error_code for each in answer.results}


async def describe(node: KafkaNode, *names: str) -> dict[str, Any]:
    users = [DescribeUserScramCredentialsRequestUser(name) for name in names] or None
    answer = await node.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users), 0)
    assert answer.error_code == 0
    return {
        each.user: each.error_code or {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


async def logs_in(node: KafkaNode, user: str, password: str) -> bool:
    credential = Password(user, Secret(password.encode()))
    try:
        await node.broker.authenticator.authenticate(credential, "10.0.0.1", is_private=True)
    except PenstockError:
        return False
    return True


async def test_a_user_is_created_with_the_passwords_that_a_client_hashed(node: KafkaNode) -> None:
    assert await alter(node, upsertion("anna"), upsertion("anna", mechanism=2, iterations=8192)) == {"anna": 0}
    assert await describe(node) == {"anna": {1: 4096, 2: 8192}}
    assert await logs_in(node, "anna", "secret")
    assert not await logs_in(node, "anna", "wrong")


async def test_a_password_is_replaced_for_one_mechanism(node: KafkaNode) -> None:
    await alter(node, upsertion("anna"), upsertion("anna", mechanism=2))
    assert await alter(node, upsertion("anna", "new")) == {"anna": 0}
    assert await logs_in(node, "anna", "new")
    assert await alter(node, Deletion("anna", 1)) == {"anna": 0}
    assert await describe(node, "anna") == {"anna": {2: 4096}}
    assert await logs_in(node, "anna", "secret")


async def test_without_any_credential_the_user_is_gone_unless_it_has_keys(node: KafkaNode) -> None:
    await alter(node, upsertion("anna"), upsertion("bert"))
    await node.broker.authenticator.keys.create("bert", "", 0, None)
    assert await alter(node, Deletion("anna", 1), Deletion("bert", 1)) == {"anna": 0, "bert": 0}
    assert [name for name, _ in node.broker.authenticator.users.items()] == ["bert"]
    assert await describe(node) == {}
    assert await alter(node, upsertion("bert")) == {"bert": 0}
    assert await logs_in(node, "bert", "secret")


async def test_an_administrator_without_credentials_stays(node: KafkaNode) -> None:
    await node.broker.authenticator.users.create("boss", {}, 0, admin=True)
    await alter(node, upsertion("boss"))
    assert await alter(node, Deletion("boss", 1)) == {"boss": 0}
    assert node.broker.authenticator.users.is_admin("boss")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([Deletion("u", 1)], 91),
        ([upsertion("u"), Deletion("u", 2)], 91),
        ([upsertion("u"), upsertion("u")], 92),
        ([upsertion("u"), Deletion("u", 1)], 92),
        ([upsertion("")], 93),
        ([upsertion("a b")], 93),
        ([upsertion("*")], 93),
        ([upsertion("u\u00ad")], 93),
        ([upsertion("u", iterations=4095)], 93),
        ([upsertion("u", iterations=16_385)], 93),
        ([Upsertion("u", 1, 4096, b"", bytes(32))], 93),
        ([Upsertion("u", 1, 4096, b"s" * 300, bytes(32))], 93),
        ([Upsertion("u", 1, 4096, b"salt", bytes(64))], 93),
        ([Upsertion("u", 3, 4096, b"salt", bytes(32))], 33),
        ([Deletion("u", 0)], 33),
    ],
)
async def test_a_change_that_cannot_be_made_changes_nothing_of_its_user_alone(
    node: KafkaNode, changes: list[Any], code: int
) -> None:
    assert await alter(node, *changes, upsertion("other")) == {changes[0].name: code, "other": 0}
    assert await describe(node) == {"other": {1: 4096}}


async def test_one_request_has_a_bound(node: KafkaNode) -> None:
    many = [Deletion(f"u{number}", 1) for number in range(ALTERED_CREDENTIALS_MAX + 1)]
    assert set((await alter(node, *many)).values()) == {42}


async def test_users_that_are_unknown_or_listed_twice_are_told_apart(node: KafkaNode) -> None:
    await alter(node, upsertion("anna"))
    assert await describe(node, "anna", "nobody", "twice", "twice") == {
        "anna": {1: 4096},
        "nobody": 91,
        "twice": 92,
    }


async def test_without_authentication_there_are_none(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        answer = await node.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(None), 0)
        assert answer.error_code == 54
        assert await alter(node, upsertion("anna")) == {"anna": 54}
