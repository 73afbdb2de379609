"""A file per Kafka API, named by its key. A handler translates a request to operations of the core, and their results to the response.

A file registers its handler with :func:`handles`, and its docstring says what each version changed. ApiVersions lists the registered APIs. Those
that are always refused share ``refusals.py``.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from penstock.wire.kafka.apis import ApiKey

Handle = TypeVar("Handle", bound=Callable[..., Any])


class ApiHandler(NamedTuple):
    """Serves one API: ``handle(request, context)`` returns the response, or an awaitable or a deferred one."""

    handle: Callable[[Any, Any], Any]
    versions: range


HANDLERS: Final[dict[ApiKey, ApiHandler]] = {}
"""By API key."""


def handles(key: ApiKey, versions: tuple[int, int]) -> Callable[[Handle], Handle]:
    """Register the handler of an API, with the first and the last version that it serves."""

    def register(handle: Handle) -> Handle:
        assert key not in HANDLERS, f"{key.name} has two handlers"
        HANDLERS[key] = ApiHandler(handle, range(versions[0], versions[1] + 1))
        return handle

    return register


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
