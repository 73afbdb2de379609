"""The rules of the templates, which are what people usually need together.

A prefix is how the names of topics, groups and transactional ids begin; without one, a template is about all of them.
"""

from collections.abc import Iterator
from typing import Final

from penstock.core.queues.moves import DEAD_LETTER_PREFIX
from penstock.operations.access import CLUSTER_NAME, WILDCARD, Pattern, Permission, Rule, Template
from penstock.operations.operation import Action, Resource

_EVERYTHING: Final = (
    Resource.TOPIC,
    Resource.GROUP,
    Resource.TRANSACTIONAL_ID,
    Resource.DELEGATION_TOKEN,
    Resource.USER,
)
_OPERATED_TOPICS: Final = (
    Action.DESCRIBE,
    Action.CREATE,
    Action.DELETE,
    Action.ALTER,
    Action.DESCRIBE_CONFIGS,
    Action.ALTER_CONFIGS,
)
_OPERATED_GROUPS: Final = (Action.DESCRIBE, Action.DELETE, Action.DESCRIBE_CONFIGS, Action.ALTER_CONFIGS)
_OPERATED_CLUSTER: Final = (Action.DESCRIBE, Action.CREATE, Action.DESCRIBE_CONFIGS, Action.ALTER_CONFIGS)
"""Without Alter, which also allows to change access rules."""


def rules_of(principal: str, template: Template, prefix: str) -> tuple[Rule, ...]:
    """The rules that a template creates for a principal."""
    return tuple(
        Rule(principal, Permission.ALLOW, action, resource, name, pattern)
        for action, resource, name, pattern in _granted(template, prefix)
    )


_Granted = tuple[Action, Resource, str, Pattern]


def _granted(template: Template, prefix: str) -> Iterator[_Granted]:
    if template is Template.ADMIN:
        for resource in _EVERYTHING:
            yield Action.ALL, resource, *_covering("")
        yield Action.ALL, Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL
    elif template is Template.OPERATOR:
        for action in _OPERATED_TOPICS:
            yield action, Resource.TOPIC, *_covering("")
        for action in _OPERATED_GROUPS:
            yield action, Resource.GROUP, *_covering("")
        yield Action.DESCRIBE, Resource.TRANSACTIONAL_ID, *_covering("")
        for action in _OPERATED_CLUSTER:
            yield action, Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL
    elif template is Template.WRITER:
        yield Action.WRITE, Resource.TOPIC, *_covering(prefix)
        yield Action.WRITE, Resource.TRANSACTIONAL_ID, *_covering(prefix)
    else:
        yield Action.READ, Resource.TOPIC, *_covering(prefix)
        yield Action.READ, Resource.GROUP, *_covering(prefix)
        if template is Template.WORKER and prefix:
            yield Action.READ, Resource.TOPIC, DEAD_LETTER_PREFIX + prefix, Pattern.PREFIXED


def _covering(prefix: str) -> tuple[str, Pattern]:
    return (prefix, Pattern.PREFIXED) if prefix else (WILDCARD, Pattern.LITERAL)
