"""ApiVersions (API key 18): the APIs and versions that this broker serves. The connection answers a request of an unknown version."""

from typing import Final

from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.kafka.apis import ApiKey

_SOFTWARE_NAME_FROM: Final = 3


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Made from the registered handlers, so every listed API is served."""
    if context.version >= _SOFTWARE_NAME_FROM and not (
        _is_plain(request.client_software_name) and _is_plain(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=context.code(Reason.INVALID_REQUEST))
    return ApiVersionsResponse(api_keys=context.gateway.advertised)


def _is_plain(text: str) -> bool:
    """Kafka's rule for a client's name and version."""
    return (
        bool(text)
        and text[0].isalnum()
        and text[-1].isalnum()
        and all(c.isalnum() or c in ".-" for c in text)
        and text.isascii()
    )
