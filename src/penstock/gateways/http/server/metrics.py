"""GET /metrics: the numbers of this node for Prometheus, in its text format or, if the client asks for it, in OpenMetrics."""

from typing import Final

from penstock.gateways.http.server.answers import Answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Content, HttpCall
from penstock.operations.cluster import ReadMetrics

CALLS: Final = ApiCalls("Node")


@CALLS.get(
    "/metrics",
    CallDoc(
        "Get the metrics of this node for Prometheus",
        {200: Content("text/plain")},
        description="OpenMetrics text if the Accept header contains application/openmetrics-text.",
    ),
)
async def _metrics(call: HttpCall) -> Answer:
    await call.do(ReadMetrics())
    accept = (call.header(b"accept") or b"").decode("latin-1")
    text, content_type = await call.gateway.metrics.text(accept)
    return Answer(200, text, content_type.encode("latin-1"))
