"""All that is served below ``/v1``, in the order in which it is documented."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from penstock.gateways.http.v1 import (
    cluster,
    consume,
    dlq,
    groups,
    leases,
    produce,
    queues,
    sinks,
    status,
    topics,
)

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

RESOURCES: Final[Sequence[Callable[["HttpGateway"], Sequence[Route]]]] = (
    topics.routes,
    produce.routes,
    consume.routes,
    leases.routes,
    queues.routes,
    dlq.routes,
    groups.routes,
    sinks.routes,
    cluster.routes,
    status.routes,
)
