"""GET /metrics: the node's numbers for Prometheus, as its text or, if the scraper asks for it, as OpenMetrics."""

from typing import TYPE_CHECKING

from starlette.routing import Route

from penstock.gateways.http.server.answers import Answer
from penstock.gateways.http.server.routing import Call, CallDoc, Content, route
from penstock.operations.operation import Action

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway
    from penstock.observe.metrics import Metrics


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /metrics."""
    made: list[Metrics] = []

    async def metrics(call: Call) -> Answer:
        broker = call.gateway.broker
        broker.access.require_cluster(call.caller, Action.DESCRIBE)
        if not made:
            # A broker that nobody scrapes need not load the library.
            from penstock.observe.metrics import Metrics

            made.append(Metrics(broker, call.gateway.problem))
        accept = (call.header(b"accept") or b"").decode("latin-1")
        text, content_type = await made[0].text(accept)
        return Answer(200, text, content_type.encode("latin-1"))

    operation = CallDoc(
        "Node",
        "Get the metrics of this node for Prometheus",
        {200: Content("text/plain")},
        description="OpenMetrics text if the Accept header contains application/openmetrics-text.",
    )
    return [route(gateway, "GET", "/metrics", metrics, operation)]
