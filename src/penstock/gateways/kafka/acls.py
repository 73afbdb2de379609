"""Kafka's numbers for access rules, and the rules and filters in requests."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, Protocol, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.operations.access import Pattern, PatternFilter, Permission, Rule, RuleFilter
from penstock.operations.operation import Action, Resource

ANY: Final = 1
"""In filters."""

RESOURCES: Final[Mapping[int, Resource]] = {
    2: Resource.TOPIC,
    3: Resource.GROUP,
    4: Resource.CLUSTER,
    5: Resource.TRANSACTIONAL_ID,
    6: Resource.DELEGATION_TOKEN,
    7: Resource.USER,
}
ACTIONS: Final[Mapping[int, Action]] = {
    2: Action.ALL,
    3: Action.READ,
    4: Action.WRITE,
    5: Action.CREATE,
    6: Action.DELETE,
    7: Action.ALTER,
    8: Action.DESCRIBE,
    9: Action.CLUSTER_ACTION,
    10: Action.DESCRIBE_CONFIGS,
    11: Action.ALTER_CONFIGS,
    12: Action.IDEMPOTENT_WRITE,
    13: Action.CREATE_TOKENS,
    14: Action.DESCRIBE_TOKENS,
}
PERMISSIONS: Final[Mapping[int, Permission]] = {2: Permission.DENY, 3: Permission.ALLOW}
PATTERNS: Final[Mapping[int, Pattern]] = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
_PATTERN_FILTERS: Final[Mapping[int, PatternFilter]] = {
    2: PatternFilter.MATCH,
    3: PatternFilter.LITERAL,
    4: PatternFilter.PREFIXED,
}

Word = TypeVar("Word", bound=Enum)


class _Creation(Protocol):
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class _Filter(Protocol):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def number_of(words: Mapping[int, Word], word: Word) -> int:
    """Kafka's number for a word."""
    return next(number for number, each in words.items() if each is word)


def rule_in(asked: _Creation) -> Rule:
    """The rule in a request; INVALID_REQUEST if a number has no meaning in a rule."""
    return Rule(
        asked.principal,
        _word(PERMISSIONS, asked.permission_type, "permission"),
        _word(ACTIONS, asked.operation, "operation"),
        _word(RESOURCES, asked.resource_type, "resource type"),
        asked.resource_name,
        _word(PATTERNS, asked.resource_pattern_type, "pattern type"),
        asked.host,
    )


def filter_in(asked: _Filter) -> RuleFilter:
    """The filter in a request; INVALID_REQUEST if a number is unknown."""
    return RuleFilter(
        asked.principal_filter,
        _word_or_any(PERMISSIONS, asked.permission_type, "permission"),
        _word_or_any(ACTIONS, asked.operation, "operation"),
        _word_or_any(RESOURCES, asked.resource_type_filter, "resource type"),
        asked.resource_name_filter,
        _word_or_any(_PATTERN_FILTERS, asked.pattern_type_filter, "pattern type"),
        asked.host_filter,
    )


def _word_or_any(words: Mapping[int, Word], number: int, what: str) -> Word | None:
    return None if number == ANY else _word(words, number, what)


def _word(words: Mapping[int, Word], number: int, what: str) -> Word:
    found = words.get(number)
    if found is None:
        raise PenstockError(Reason.INVALID_REQUEST, f"{number} is not a valid {what} here")
    return found
