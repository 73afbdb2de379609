"""One record of the audit log, as JSON, with the classes of OCSF (https://schema.ocsf.io) and flat fields.

Nothing of a request is in it but the names of what it concerns: no values, no configs, no credentials.
"""

from enum import Enum
from typing import Any, Final

import msgspec

from penstock.core.security.access import AccessDenied, Caller
from penstock.errors import PenstockError
from penstock.limits import AUDIT_NAMES_MAX, AUDIT_TEXT_CHARS_MAX
from penstock.operations.operation import Action, AnyOperation, Resource

_CHANGING: Final = frozenset({Action.CREATE, Action.DELETE, Action.ALTER, Action.ALTER_CONFIGS, Action.CLUSTER_ACTION})
_DATA: Final = frozenset({Action.READ, Action.WRITE, Action.IDEMPOTENT_WRITE})


class EventClass(Enum):
    """The kind of a record: OCSF's name and number."""

    AUTHENTICATION = ("authentication", 3002)
    API = ("api_activity", 6003)
    LIFECYCLE = ("application_lifecycle", 6002)


class Result(Enum):
    """How it ended."""

    ATTEMPT = "attempt"
    """It is about to be done: written first if the audit log is required."""
    SUCCESS = "success"
    DENIED = "denied"
    """Rights are missing, or the credential is wrong."""
    FAILURE = "failure"


class Effect(Enum):
    """What an operation does, by the rights that it needs."""

    CHANGE = "change"
    DATA = "data"
    LOOK = "look"


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is written. ``time`` is unix time in milliseconds."""

    time: int
    event: str
    class_uid: int
    result: str
    node: int
    operation: str = ""
    principal: str = ""
    method: str = ""
    """How the caller authenticated; empty if it did not."""
    client: str = ""
    """The address."""
    client_id: str = ""
    """What the client calls itself."""
    gateway: str = ""
    listener: str = ""
    resource_type: str = ""
    resources: tuple[str, ...] = ()
    """What it concerns, by name; the first ones if there are many."""
    resource_count: int = 0
    """How many resources there are, if not all are listed."""
    details: dict[str, Any] = {}
    """What else was asked for, by field: the rules, the user, the quotas. Lists are cut as resources are."""
    reason: str = ""
    rule: str = ""
    """The rule that decided about a refusal."""
    request_id: str = ""
    count: int = 1
    """How often it happened: more than once in a summary of what was not written one by one."""


_encoder: Final = msgspec.json.Encoder()


def encode(record: AuditRecord) -> bytes:
    """One line, without its end."""
    return _encoder.encode(record)


def shown(text: str) -> str:
    """A text of a client: bounded, and without lone surrogates, which cannot be encoded."""
    return text[:AUDIT_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()


def by_caller(caller: Caller) -> dict[str, Any]:
    """The fields about a caller."""
    return {
        "principal": shown(caller.principal),
        "method": caller.method,
        "client": caller.client,
        "client_id": shown(caller.client_id),
        "gateway": caller.gateway.value,
        "listener": caller.listener,
        "request_id": shown(caller.request_id),
    }


def effect_of(kind: type[AnyOperation[Any]]) -> Effect:
    """What an operation does."""
    if kind.is_change:
        return Effect.CHANGE
    actions = {right.action for right in kind.rights}
    if actions & _CHANGING and kind.is_change is None:
        return Effect.CHANGE
    return Effect.DATA if actions & _DATA else Effect.LOOK


def concerned(asked: AnyOperation[Any]) -> dict[str, Any]:
    """The fields about what an operation concerns: what its first right that names something names, and what else it shows."""
    fields = _resources_of(asked)
    if asked.audited:
        fields["details"] = {field: _bounded(msgspec.to_builtins(getattr(asked, field))) for field in asked.audited}
    return fields


def _bounded(value: Any) -> Any:  # noqa: ANN401  what JSON has
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value[:AUDIT_NAMES_MAX]]
    if isinstance(value, dict):
        return {shown(name): _bounded(item) for name, item in list(value.items())[:AUDIT_NAMES_MAX]}
    return value


def _resources_of(asked: AnyOperation[Any]) -> dict[str, Any]:
    for right in asked.rights:
        if not right.field or right.resource is Resource.CLUSTER:
            continue
        found = getattr(asked, right.field)
        if found is None:
            continue
        names = [found] if isinstance(found, str) else [_name(item) for item in found]
        return named(right.resource, names)
    return {"resource_type": Resource.CLUSTER.value}


def named(resource: Resource, names: list[str]) -> dict[str, Any]:
    """The fields about resources of one kind."""
    distinct = list(dict.fromkeys(names))
    fields: dict[str, Any] = {
        "resource_type": resource.value,
        "resources": tuple(shown(name) for name in distinct[:AUDIT_NAMES_MAX]),
    }
    if len(distinct) > AUDIT_NAMES_MAX:
        fields["resource_count"] = len(distinct)
    return fields


def _name(item: Any) -> str:  # noqa: ANN401  an item of any operation
    return item if isinstance(item, str) else str(item.topic)


def about_refusal(error: PenstockError) -> dict[str, Any]:
    """The fields about why something was not done. The text of the error is not among them: it may quote a request."""
    fields: dict[str, Any] = {"reason": error.reason.name.lower()}
    if isinstance(error, AccessDenied):
        fields |= named(error.resource, [error.name])
        rule = error.decision.rule
        fields["rule"] = error.decision.cause.value if rule is None else shown(str(rule))
    return fields
