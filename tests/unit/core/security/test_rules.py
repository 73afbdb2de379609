"""Access rules and roles in the metadata store: every node has all of them, whatever the order of changes."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.security import rules as module
from penstock.core.security.acls import AclIndex
from penstock.core.security.rules import ACLS_PREFIX, ROLES_PREFIX, AccessRules
from penstock.errors import PenstockError, Reason
from penstock.limits import ROLE_MEMBERS_MAX
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Put
from penstock.operations.access import Pattern, PatternFilter, Permission, RoleDescription, Rule, RuleFilter
from penstock.operations.operation import Action, Resource

ALL = RuleFilter()


def allow(principal: str, name: str, action: Action = Action.READ) -> Rule:
    return Rule(principal, Permission.ALLOW, action, Resource.TOPIC, name)


A, B, C = allow("User:anna", "a"), allow("User:bert", "b"), allow("Role:r", "c", Action.WRITE)


class Node:
    """One node's view of a store."""

    def __init__(self, store: MemoryStore) -> None:
        self.used: list[AclIndex | None] = []
        self.reports: list[str] = []
        self.rules = AccessRules(store, self.used.append, self.reports.append)

    @property
    def index(self) -> AclIndex | None:
        return self.used[-1]


async def loaded(store: MemoryStore) -> Node:
    node = Node(store)
    await node.rules.load()
    return node


async def refusal(waited: Any) -> Reason:
    with pytest.raises(PenstockError) as refused:
        await waited
    return refused.value.reason


async def test_what_one_node_creates_every_node_decides_by() -> None:
    store = MemoryStore()
    one, other = await loaded(store), await loaded(store)
    await one.rules.create([A, B, A])
    for node in (one, other, await loaded(store)):
        assert node.rules.rules(ALL) == (A, B)
        assert node.index is not None
        assert node.index.rules == {A, B}
    assert await other.rules.delete([RuleFilter(principal="User:anna"), RuleFilter(name="x"), ALL]) == (
        (A,),
        (),
        (A, B),
    )
    assert one.rules.rules(ALL) == ()


async def test_creating_a_rule_again_changes_nothing() -> None:
    store = MemoryStore()
    node = await loaded(store)
    await node.rules.create([A])
    before = (await store.range("")).revision
    await node.rules.create([A])
    assert (await store.range("")).revision == before


async def test_an_invalid_rule_leaves_the_others_uncreated() -> None:
    node = await loaded(MemoryStore())
    assert await refusal(node.rules.create([A, allow("nobody", "t")])) is Reason.INVALID_REQUEST
    assert node.rules.rules(ALL) == ()


async def test_rules_are_selected_by_what_covers_a_name() -> None:
    node = await loaded(MemoryStore())
    prefixed = Rule("User:anna", Permission.DENY, Action.ALL, Resource.TOPIC, "ord", Pattern.PREFIXED, "10.0.0.1")
    await node.rules.create([prefixed, allow("User:anna", "*"), allow("User:anna", "orders"), A])
    selected = RuleFilter(name="orders", pattern=PatternFilter.MATCH)
    assert set(node.rules.rules(selected)) == {prefixed, allow("User:anna", "*"), allow("User:anna", "orders")}


async def test_a_deletion_finds_what_another_node_created_just_before(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    one, other = await loaded(store), await loaded(store)
    monkeypatch.setattr(other.rules, "_index", AclIndex())
    await one.rules.create([A])
    monkeypatch.setattr(other.rules, "_index", AclIndex())
    assert await other.rules.delete([ALL]) == ((A,),)
    assert one.rules.rules(ALL) == ()


async def test_there_is_a_limit_on_rules_and_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACLS_MAX", 2)
    monkeypatch.setattr(module, "ROLES_MAX", 1)
    node = await loaded(MemoryStore())
    await node.rules.create([A, B])
    assert await refusal(node.rules.create([C])) is Reason.POLICY_VIOLATION
    await node.rules.create([A])
    await node.rules.create_role("one", ())
    assert await refusal(node.rules.create_role("two", ())) is Reason.POLICY_VIOLATION
    await node.rules.create_role("one", ())


async def test_many_rules_take_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPERATIONS_MAX", 3)
    node = await loaded(MemoryStore())
    many = [allow("User:anna", f"t{n}") for n in range(10)]
    await node.rules.create(many)
    assert set(node.rules.rules(ALL)) == set(many)
    assert len((await node.rules.delete([ALL]))[0]) == 10
    assert node.rules.rules(ALL) == ()


# Roles.


async def test_a_role_gains_and_loses_members_and_goes_with_its_rules() -> None:
    store = MemoryStore()
    node, other = await loaded(store), await loaded(store)
    assert await node.rules.create_role("r", ["User:bert", "User:anna"]) == RoleDescription(
        "r", ("User:anna", "User:bert")
    )
    await node.rules.create([A, C])
    changed = await other.rules.alter_role("r", ["Group:staff", "User:anna"], ["User:bert", "User:nobody"])
    assert changed == RoleDescription("r", ("Group:staff", "User:anna"))
    assert node.rules.roles() == (changed,)
    assert node.index is not None
    assert "Role:r" in node.index.principals_of("User:x", ["staff"])
    await node.rules.delete_role("r")
    assert other.rules.roles() == ()
    assert other.rules.rules(ALL) == (A,)


async def test_what_is_wrong_with_roles_is_refused() -> None:
    node = await loaded(MemoryStore())
    for name in ("", "a/b", "x" * 101, "*", "line\nbreak"):
        assert await refusal(node.rules.create_role(name, ())) is Reason.INVALID_REQUEST
    for member in ("anna", "Role:other", "User:*", "User:"):
        assert await refusal(node.rules.create_role("r", [member])) is Reason.INVALID_REQUEST
    too_many = [f"User:{n}" for n in range(ROLE_MEMBERS_MAX + 1)]
    assert await refusal(node.rules.create_role("r", too_many)) is Reason.POLICY_VIOLATION
    assert await refusal(node.rules.alter_role("r", (), ())) is Reason.UNKNOWN_ROLE
    assert await refusal(node.rules.delete_role("r")) is Reason.UNKNOWN_ROLE
    await node.rules.create_role("r", ["User:anna"])
    assert await node.rules.create_role("r", ["User:anna"]) == RoleDescription("r", ("User:anna",))
    assert await refusal(node.rules.create_role("r", ["User:bert"])) is Reason.INVALID_REQUEST


async def test_two_nodes_that_change_a_role_lose_no_member() -> None:
    store = MemoryStore()
    one, other = await loaded(store), await loaded(store)
    await one.rules.create_role("r", ())
    get = store.get

    async def get_late(key: str) -> Any:
        entry = await get(key)
        store.get = get  # type: ignore[method-assign]
        await other.rules.alter_role("r", ["User:bert"], ())
        return entry

    store.get = get_late  # type: ignore[method-assign]
    assert (await one.rules.alter_role("r", ["User:anna"], ())).members == ("User:anna", "User:bert")


# What is in the store.


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.booleans(), st.integers(0, 11)) | st.tuples(st.booleans(), st.integers(100, 103)), max_size=25
    )
)
def test_after_every_change_the_index_is_the_one_that_a_restart_would_build(changes: list[tuple[bool, int]]) -> None:
    """CVE-2024-27309: an authorizer that was updated step by step had fewer rules than the store."""

    async def run() -> None:
        store = MemoryStore()
        follower = await loaded(store)
        node = await loaded(store)
        for is_added, number in changes:
            if number >= 100:
                name = f"r{number}"
                if is_added:
                    await node.rules.create_role(name, ["User:anna"])
                elif any(role.name == name for role in node.rules.roles()):
                    await node.rules.delete_role(name)
            else:
                rule = Rule(
                    f"User:{number % 3}",
                    (Permission.ALLOW, Permission.DENY)[number % 2],
                    Action.READ,
                    Resource.TOPIC,
                    # Names that are prefixes of each other, on one resource pattern or several.
                    "ab"[: 1 + number % 2],
                    (Pattern.LITERAL, Pattern.PREFIXED)[number // 6],
                )
                if is_added:
                    await node.rules.create([rule])
                else:
                    await node.rules.delete([RuleFilter(**msgspec.structs.asdict(rule) | {"pattern": None})])
            rebuilt = await loaded(store)
            for seen in (node, follower):
                assert seen.index is not None
                assert rebuilt.index is not None
                assert seen.index.rules == rebuilt.index.rules
                assert seen.index.roles == rebuilt.index.roles
                assert_same(seen.index, rebuilt.index)

    asyncio.run(run())


def assert_same(one: AclIndex, other: AclIndex) -> None:
    assert one._covering.keys() == other._covering.keys()
    for key, covering in one._covering.items():
        same = other._covering[key]
        assert (covering.exact, covering.prefixed, covering.lengths) == (same.exact, same.prefixed, same.lengths)


async def test_changes_during_the_load_are_not_lost() -> None:
    store = MemoryStore()
    writer = await loaded(store)
    await writer.rules.create([A])
    read = store.range

    async def range_and_change(prefix: str) -> Any:
        found = await read(prefix)
        store.range = read  # type: ignore[method-assign]
        await writer.rules.create([B])
        await writer.rules.delete([RuleFilter(principal="User:anna")])
        return found

    store.range = range_and_change  # type: ignore[method-assign]
    node = await loaded(store)
    assert node.rules.rules(ALL) == (B,)


NEWER = msgspec.json.encode({**msgspec.to_builtins(A), "until_ms": 5})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ACLS_PREFIX}x", b"not json"),
        (f"{ACLS_PREFIX}x", NEWER),
        (
            f"{ACLS_PREFIX}x",
            b'{"principal":"User:a","permission":"maybe","action":"read","resource":"topic","name":"t"}',
        ),
        (f"{ROLES_PREFIX}x", b"[]"),
    ],
)
async def test_with_an_entry_that_cannot_be_read_nothing_is_decided(key: str, value: bytes) -> None:
    """It may be a rule that denies."""
    store = MemoryStore()
    node = await loaded(store)
    await node.rules.create([A])
    await store.txn([], [Put(key, value)])
    assert node.index is None
    assert key in node.reports[-1]
    assert await refusal(Node(store).rules.load()) is Reason.STORAGE_ERROR
    await node.rules.create([B])
    assert node.index is None
    await store.txn([], [Delete(key)])
    assert node.index is not None
    assert node.index.rules == {A, B}
