"""All operations by name, and how each is written on the link between two nodes.

A node that does not know a name refuses that operation alone, so nodes of two releases can work in one cluster.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec

from penstock.operations import (
    access,
    cluster,
    configs,
    dead_letters,
    groups,
    queues,
    quotas,
    records,
    sinks,
    topics,
    transactions,
    users,
)
from penstock.operations.operation import AnyOperation, Operation, Stream, result_type

_MODULES: Final = (
    topics,
    configs,
    records,
    groups,
    queues,
    dead_letters,
    sinks,
    cluster,
    access,
    transactions,
    quotas,
    users,
)


def _found() -> Iterator[type[AnyOperation[Any]]]:
    for module in _MODULES:
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, AnyOperation) and found not in (Operation, Stream):
                yield found


CATALOGUE: Final[Mapping[str, type[AnyOperation[Any]]]] = MappingProxyType(
    {found.__name__: found for found in _found()}
)


@cache
def operation_decoder(name: str) -> msgspec.msgpack.Decoder[Any] | None:
    """What reads an operation of this name; None if there is none."""
    found = CATALOGUE.get(name)
    return None if found is None else msgspec.msgpack.Decoder(found)


@cache
def result_decoder(asked: type[AnyOperation[Any]]) -> msgspec.msgpack.Decoder[Any]:
    """What reads an operation's result, or the items of a stream."""
    kind = result_type(asked)
    return msgspec.msgpack.Decoder(list[kind] if issubclass(asked, Stream) else kind)  # type: ignore[valid-type]  # known when it runs
