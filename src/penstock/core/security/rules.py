"""The access rules and roles of a cluster, in memory and in the metadata store.

In the store, ``security/acls/<hash of the rule>`` holds a rule, and ``security/roles/<name>`` holds ``{"members": [...]}``. The key of a rule
follows from the rule, so creating it twice is the same as once, and no two changes of rules can conflict.

They are not loaded while authentication is off. Each change is visible on this node when the call returns, and on other nodes as soon as the store tells them.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from penstock.core.security.acls import AclIndex, check_principal, checked_rule, selects, sort_key
from penstock.core.topics.records import decode_entry, unreadable
from penstock.errors import PenstockError, Reason
from penstock.limits import ACLS_MAX, ROLE_MEMBERS_MAX, ROLE_NAME_CHARS_MAX, ROLES_MAX
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Operation, Put
from penstock.operations.access import ROLE, RoleDescription, Rule, RuleFilter
from penstock.ports import Report

ACLS_PREFIX: Final = "security/acls/"
ROLES_PREFIX: Final = "security/roles/"
_PREFIXES: Final = (ACLS_PREFIX, ROLES_PREFIX)
_ATTEMPTS_MAX: Final = 100
"""How often a change of a role is tried again because of a concurrent one."""


class _RoleRecord(msgspec.Struct, frozen=True):
    members: tuple[str, ...]


class _RuleRecord(Rule, frozen=True, forbid_unknown_fields=True):
    """A field of a later version may restrict the rule, so it must not be ignored."""


_rule_decoder: Final = msgspec.json.Decoder(_RuleRecord)
_role_decoder: Final = msgspec.json.Decoder(_RoleRecord)


class AccessRules:
    """All rules and roles. ``use`` gets a new index after each change, and None if it cannot be read."""

    def __init__(self, store: MetadataStore, use: Callable[[AclIndex | None], None], report: Report) -> None:
        self._store = store
        self._use = use
        self._report = report
        self._rules: dict[str, Rule] = {}
        self._roles: dict[str, frozenset[str]] = {}
        self._unreadable: set[str] = set()
        self._held_events: list[Event] | None = []
        self._index = AclIndex()

    async def load(self) -> None:
        """Read everything from the store and follow it from there. PenstockError if an entry cannot be read."""
        revisions: dict[str, int] = {}
        for prefix in _PREFIXES:
            self._store.subscribe(prefix, self._take)
            found = await self._store.range(prefix)
            revisions[prefix] = found.revision
            for entry in found.entries:
                self._note(entry.key, entry)
        held, self._held_events = self._held_events or [], None
        for event in held:
            if event.revision > revisions[_prefix_of(event.key)]:
                self._note(event.key, event.entry)
        if self._unreadable:
            raise unreadable(min(self._unreadable))
        self._build()

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            self._note(event.key, event.entry)
        if self._unreadable:
            # It may deny something.
            self._report(f"access is refused to everyone but super users: {unreadable(min(self._unreadable)).text}")
            self._use(None)
        else:
            self._build()

    def _note(self, key: str, entry: Entry | None) -> None:
        self._unreadable.discard(key)
        self._rules.pop(key, None)
        self._roles.pop(key, None)
        if entry is None:
            return
        try:
            if key.startswith(ACLS_PREFIX):
                self._rules[key] = _rule_of(entry)
            else:
                self._roles[key] = frozenset(_members_of(entry))
        except PenstockError:
            self._unreadable.add(key)

    def _build(self) -> None:
        roles = {key.removeprefix(ROLES_PREFIX): members for key, members in self._roles.items()}
        self._index = AclIndex(self._rules.values(), roles)
        self._use(self._index)

    # Rules.

    def rules(self, selected: RuleFilter) -> tuple[Rule, ...]:
        """The rules that a filter selects, in the order in which they are shown."""
        return tuple(sorted((rule for rule in self._index.rules if selects(selected, rule)), key=sort_key))

    async def create(self, rules: Iterable[Rule]) -> None:
        """Create rules that do not exist yet. Nothing is created if one of them is invalid."""
        new = {_key(rule): rule for rule in map(checked_rule, rules) if rule not in self._index.rules}
        count = len(self._index.rules) + len(new)
        if new and count > ACLS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"There would be {count} access rules; the limit is {ACLS_MAX}. Delete some, or use prefixes and roles",
            )
        await self._apply([Put(key, msgspec.json.encode(rule)) for key, rule in new.items()])

    async def delete(self, filters: Sequence[RuleFilter]) -> tuple[tuple[Rule, ...], ...]:
        """Delete all rules that a filter selects, and return those of each filter."""
        # From the store: another node may have created a rule just before.
        entries = (await self._store.range(ACLS_PREFIX)).entries
        stored = sorted((_rule_of(entry) for entry in entries), key=sort_key)
        found = tuple(tuple(rule for rule in stored if selects(selected, rule)) for selected in filters)
        doomed = dict.fromkeys(_key(rule) for selected in found for rule in selected)
        await self._apply([Delete(key) for key in doomed])
        return found

    async def _apply(self, operations: Sequence[Operation]) -> None:
        """In as few transactions as the store allows."""
        most = min(self._store.operations_max, _OPERATIONS_MAX)
        for first in range(0, len(operations), most):
            await self._store.txn([], operations[first : first + most])

    # Roles.

    def roles(self) -> tuple[RoleDescription, ...]:
        """All roles, by name."""
        return tuple(_described(name, members) for name, members in sorted(self._index.roles.items()))

    async def create_role(self, name: str, members: Sequence[str]) -> RoleDescription:
        """INVALID_REQUEST if it exists with other members."""
        check_role_name(name)
        wanted = _checked_members(members)
        if name not in self._index.roles and len(self._index.roles) >= ROLES_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION, f"There are {ROLES_MAX} roles, which is the limit. Delete some of them"
            )
        key = ROLES_PREFIX + name
        if not await self._put_role(key, 0, wanted):
            existing = await self._store.get(key)
            if existing is None or frozenset(_members_of(existing)) != wanted:
                raise PenstockError(
                    Reason.INVALID_REQUEST, f"The role {name} exists with other members; add or remove members instead"
                )
        return _described(name, wanted)

    async def alter_role(self, name: str, add: Sequence[str], remove: Sequence[str]) -> RoleDescription:
        """Add and remove members; UNKNOWN_ROLE if there is no such role."""
        check_role_name(name)
        key = ROLES_PREFIX + name
        added = _checked_members(add)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                raise _unknown_role(name)
            before = frozenset(_members_of(entry))
            after = _checked_members((before | added) - frozenset(remove))
            if after == before or await self._put_role(key, entry.mod_revision, after):
                return _described(name, after)
        raise PenstockError(Reason.REQUEST_TIMED_OUT, f"Other clients kept changing the role {name}. Try again")

    async def _put_role(self, key: str, mod_revision: int, members: frozenset[str]) -> bool:
        value = msgspec.json.encode(_RoleRecord(tuple(sorted(members))))
        return (await self._store.txn([Compare(key, mod_revision=mod_revision)], [Put(key, value)])).succeeded

    async def delete_role(self, name: str) -> None:
        """Delete a role and its rules; UNKNOWN_ROLE if there is no such role."""
        check_role_name(name)
        key = ROLES_PREFIX + name
        if await self._store.get(key) is None:
            raise _unknown_role(name)
        # First, so that its members lose all its rights at once.
        await self._store.txn([], [Delete(key)])
        await self.delete([RuleFilter(principal=f"{ROLE}{name}")])

    def require_role(self, name: str) -> None:
        """UNKNOWN_ROLE unless there is such a role."""
        check_role_name(name)
        if name not in self._index.roles:
            raise _unknown_role(name)


_OPERATIONS_MAX: Final = 1_000
"""Changes in one transaction, for a store without a limit."""


def check_role_name(name: str) -> None:
    """INVALID_REQUEST unless a role may have this name."""
    if not 0 < len(name) <= ROLE_NAME_CHARS_MAX or "/" in name or not name.isprintable() or name == "*":
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"{name[:64]!a} is not a name for a role; use 1 to {ROLE_NAME_CHARS_MAX} printable characters without slashes",
        )


def _checked_members(members: Iterable[str]) -> frozenset[str]:
    found = frozenset(members)
    for member in found:
        check_principal(member)
        if member.startswith(ROLE) or member.endswith(":*"):
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{member[:64]!a} cannot be a member of a role; add User:NAME or Group:NAME"
            )
    if len(found) > ROLE_MEMBERS_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"A role has at most {ROLE_MEMBERS_MAX} members, not {len(found)}. Use a group of your identity provider, or several roles",
        )
    return found


def _unknown_role(name: str) -> PenstockError:
    return PenstockError(Reason.UNKNOWN_ROLE, f"There is no role {name}; create it first")


def _described(name: str, members: Iterable[str]) -> RoleDescription:
    return RoleDescription(name, tuple(sorted(members)))


def _prefix_of(key: str) -> str:
    return next(prefix for prefix in _PREFIXES if key.startswith(prefix))


def _key(rule: Rule) -> str:
    return ACLS_PREFIX + sha256(msgspec.json.encode(rule)).hexdigest()


def _rule_of(entry: Entry) -> Rule:
    record = decode_entry(_rule_decoder, entry.key, entry.value)
    return Rule(**msgspec.structs.asdict(record))


def _members_of(entry: Entry) -> tuple[str, ...]:
    return decode_entry(_role_decoder, entry.key, entry.value).members
