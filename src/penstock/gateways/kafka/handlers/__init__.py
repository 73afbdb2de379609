"""A file per Kafka API, named by its key: to serve one more, add its file. A handler translates a request into calls of the core, and nothing more.

A file registers its handler with :func:`handles` and says what each version changed. What is registered is what ApiVersions lists. The APIs that
are only there to be refused share ``refusals.py``.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from penstock.wire.kafka.apis import ApiKey

Handle = TypeVar("Handle", bound=Callable[..., Any])


class ApiHandler(NamedTuple):
    """Serves one API: ``handle(request, context)`` returns the response, or what it waits for."""

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
