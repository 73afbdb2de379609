"""All that is served below ``/v1``, in the order in which it is documented."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from penstock.gateways.http import (
    v1_cluster,
    v1_consume,
    v1_dlq,
    v1_groups,
    v1_leases,
    v1_produce,
    v1_queues,
    v1_sinks,
    v1_status,
    v1_topics,
)

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

RESOURCES: Final[Sequence[Callable[["HttpGateway"], Sequence[Route]]]] = (
    v1_topics.routes,
    v1_produce.routes,
    v1_consume.routes,
    v1_leases.routes,
    v1_queues.routes,
    v1_dlq.routes,
    v1_groups.routes,
    v1_sinks.routes,
    v1_cluster.routes,
    v1_status.routes,
)
