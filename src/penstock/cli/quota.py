"""``penstock quota``: lists, sets and removes quotas."""

import re
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_S_DEFAULT, Bootstrap, IfExists, Output, Timeout, connected
from penstock.cli.output import Format, Row, emit

app = typer.Typer(help="List, set and remove quotas.", no_args_is_help=True)

_KINDS: Final = ("user", "client-id", "ip")
_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)(?:/s)?")

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="ENTITY... QUOTA=VALUE...",
        help="user=NAME, client-id=NAME or ip=ADDRESS (without a name: all that have no quota of their own), then quotas.",
    ),
]
RemovedWords = Annotated[
    list[str],
    typer.Argument(
        metavar="ENTITY... [QUOTA...]",
        help="user=NAME, client-id=NAME or ip=ADDRESS, then the quotas to remove.  [default: all of the entity]",
    ),
]


@app.command("ls")
def ls(
    output: Output = Format.TABLE, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """List all quotas."""
    from penstock.client.quota_admin import QuotaAdmin

    with connected(bootstrap, timeout) as cluster:
        found = QuotaAdmin(cluster).quotas()
    rows: list[Row] = [
        {"entity": _shown(each.entity), "quota": key, "value": _number(value)}
        for each in found
        for key, value in each.quotas.items()
    ]
    emit(rows, ["entity", "quota", "value"], output, nothing="No quotas; set one with penstock quota set")


@app.command("set")
def set_quotas(words: Words, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """Set quotas of an entity.

    For example: penstock quota set user=anna producer_byte_rate=1MB consumer_byte_rate=2MB
    """
    from penstock.client.quota_admin import QuotaAdmin

    entity, others = _split(words)
    changes: dict[str, float | None] = {}
    for word in others:
        key, equals, value = word.partition("=")
        if not equals:
            raise Failure(f"{word!r} has no value: write {key}=VALUE", Exit.USAGE)
        changes[key] = amount_of(value)
    if not changes:
        raise Failure("No quota to set: write, for example, producer_byte_rate=1MB", Exit.USAGE)
    with connected(bootstrap, timeout) as cluster:
        QuotaAdmin(cluster).alter(entity, changes)
    note(f"Set {', '.join(changes)} of {_shown(entity)}")


@app.command("rm")
def rm(
    words: RemovedWords,
    if_exists: IfExists = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Remove quotas of an entity."""
    from penstock.client.quota_admin import QuotaAdmin

    entity, keys = _split(words)
    with connected(bootstrap, timeout) as cluster:
        admin = QuotaAdmin(cluster)
        known = next((each.quotas for each in admin.quotas() if dict(each.entity) == dict(entity)), {})
        missing = [key for key in keys if key not in known]
        if (missing or not known) and not if_exists:
            raise Failure(f"{_shown(entity)} has no quota {', '.join(missing)}".rstrip(), Exit.NOT_FOUND)
        removed = [key for key in keys or known if key in known]
        if removed:
            admin.remove(entity, removed)
    note(f"Removed {', '.join(removed) or 'nothing'} from {_shown(entity)}")


def amount_of(text: str) -> float:
    """A number, perhaps with a unit of bytes: 500, 1MB, 1.5MiB/s."""
    found = _AMOUNT.fullmatch(text.strip().lower())
    unit = None if found is None else _UNITS.get(found[2])
    if found is None or unit is None:
        raise Failure(f"{text!r} is not an amount: write a number, or one with KB, MB, GB, KiB, MiB or GiB", Exit.USAGE)
    return float(found[1]) * unit


def _split(words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """The entity, and the words after it."""
    entity: dict[str, str | None] = {}
    others: list[str] = []
    for word in words:
        kind, equals, name = word.partition("=")
        if kind in _KINDS:
            if equals and not name:
                raise Failure(f"{word!r} has no name: write {kind}=NAME, or {kind} for all others", Exit.USAGE)
            entity[kind] = name if equals else None
        else:
            others.append(word)
    if not entity:
        raise Failure("No entity: write user=NAME, client-id=NAME or ip=ADDRESS", Exit.USAGE)
    return entity, others


def _shown(entity: Mapping[str, str | None]) -> str:
    return " ".join(kind if entity[kind] is None else f"{kind}={entity[kind]}" for kind in _KINDS if kind in entity)


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
