"""``penstock acl`` and ``penstock role``, against a node in this process whose rules are stored."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.cli import main
from penstock.cli.failures import Exit
from penstock.core.security.access import ANONYMOUS
from tests.support.access import use_rules
from tests.support.http_node import HttpNode

Run = Callable[..., Awaitable[tuple[str, str]]]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path) as started:
        await use_rules(started, ANONYMOUS)
        yield started


@pytest.fixture
def penstock(node: HttpNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that ends with this code; what it prints, and what it says on the side."""
    monkeypatch.setenv("PENSTOCK_HTTP", f"127.0.0.1:{node.port}")

    async def run(*words: str, code: Exit = Exit.OK) -> tuple[str, str]:
        capsys.readouterr()
        ended = await asyncio.to_thread(main.run, words)
        out, err = capsys.readouterr()
        assert ended == code, err
        return out, err

    return run


async def test_what_is_allowed_is_listed_explained_and_removed(penstock: Run) -> None:
    _, said = await penstock("acl", "allow", "User:anna", "read,describe-configs", "topic:orders*")
    assert said == (
        "Created: allow User:anna read topic:orders*\nCreated: allow User:anna describe-configs topic:orders*\n"
    )
    await penstock("acl", "deny", "User:*", "all", "cluster", "--host", "10.0.0.1")
    rows = json.loads((await penstock("acl", "ls", "--json"))[0])
    assert {(row["principal"], row["permission"], row["action"], row["resource"], row["host"]) for row in rows} == {
        ("User:anna", "allow", "read", "topic:orders*", "any"),
        ("User:anna", "allow", "describe-configs", "topic:orders*", "any"),
        ("User:*", "deny", "all", "cluster", "10.0.0.1"),
    }
    covering = json.loads((await penstock("acl", "ls", "--resource", "topic:orders.eu", "--json"))[0])
    assert len(covering) == 2
    table, _ = await penstock("acl", "ls", "--principal", "User:anna")
    assert "topic:orders*" in table
    assert "cluster" not in table
    sentence, _ = await penstock("acl", "check", "User:anna", "describe", "topic:orders.eu")
    assert 'the rule "allow User:anna read topic:orders*"' in sentence
    sentence, _ = await penstock("acl", "check", "User:anna", "write", "topic:orders.eu", code=Exit.FAILED)
    assert sentence == "User:anna may not write topic orders.eu: no rule allows it.\n"
    answer = json.loads((await penstock("acl", "check", "User:anna", "read", "topic:orders", "--json"))[0])
    assert answer["allowed"] is True
    await penstock("acl", "check", "User:x", "alter", "cluster", "--host", "10.0.0.1", code=Exit.FAILED)
    _, said = await penstock("acl", "rm", "User:anna", "read", "topic:orders*", "--yes")
    assert said == "Deleted: allow User:anna read topic:orders*\n"
    await penstock("acl", "rm", "User:anna", "read", "topic:orders*", "--yes", code=Exit.NOT_FOUND)
    await penstock("acl", "rm", "User:anna", "--yes")
    await penstock("acl", "rm", "User:*", "--yes")
    assert "No access rules" in (await penstock("acl", "ls"))[1]


@pytest.mark.parametrize(
    ("resource", "shown"),
    [
        ("topic:*", "topic:*"),
        ("group:a:b", "group:a:b"),
        ("sink:nightly*", "transactional-id:nightly*"),
        ("user:bert", "user:bert"),
    ],
)
async def test_resources_are_written_as_kind_and_name(penstock: Run, resource: str, shown: str) -> None:
    _, said = await penstock("acl", "allow", "Role:r", "write", resource)
    assert said == f"Created: allow Role:r write {shown}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("allow", "User:anna", "fly", "topic:t"),
        ("allow", "User:anna", "read", "orders"),
        ("allow", "User:anna", "read", "topic:"),
        ("deny", "User:anna", "read", "sheep:dolly"),
    ],
)
async def test_what_is_no_rule_is_wrong_usage(penstock: Run, words: tuple[str, ...]) -> None:
    await penstock("acl", *words, code=Exit.USAGE)
    assert "No access rules" in (await penstock("acl", "ls"))[1]


async def test_a_refusal_says_why(penstock: Run) -> None:
    _, said = await penstock("acl", "allow", "anna", "read", "topic:t", code=Exit.FAILED)
    assert "'anna' is not a principal" in said


async def test_roles_are_managed(penstock: Run) -> None:
    await penstock("role", "create", "billing", "--member", "User:anna")
    await penstock("role", "add", "billing", "Group:staff", "User:bert")
    await penstock("role", "remove", "billing", "User:anna")
    assert json.loads((await penstock("role", "ls", "--json"))[0]) == [
        {"role": "billing", "members": ["Group:staff", "User:bert"]}
    ]
    assert "Group:staff, User:bert" in (await penstock("role", "ls"))[0]
    _, said = await penstock("role", "grant", "billing", "reader", "bills*")
    assert "allow Role:billing read topic:bills*" in said
    sentence, _ = await penstock("acl", "check", "User:x", "read", "topic:bills", "--token-group", "staff")
    assert "has this role" in sentence
    await penstock("role", "rm", "billing", "--yes")
    assert "No access rules" in (await penstock("acl", "ls"))[1]
    await penstock("role", "rm", "billing", "--yes", "--if-exists")
    for words in (("rm", "billing", "--yes"), ("add", "billing", "User:x"), ("grant", "billing", "admin")):
        _, said = await penstock("role", *words, code=Exit.NOT_FOUND)
        assert "Role billing does not exist; see penstock role ls" in said
    await penstock("role", "grant", "billing", "king", code=Exit.USAGE)


async def test_why_says_that_a_worker_lacks_the_rights(penstock: Run, node: HttpNode) -> None:
    await node.create("orders")
    await node.append("orders", 0, 1)
    sentence, _ = await penstock("why", "orders/0@0", "--group", "g", "--principal", "User:anna")
    assert "penstock acl allow User:anna read topic:orders" in sentence
