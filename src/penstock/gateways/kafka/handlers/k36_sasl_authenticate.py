"""SaslAuthenticate (API key 36) on a connection that needs no login, or has it: refused. A login is ``login.py``'s.

Version 1 adds the lifetime of the session, 2 is flexible.
"""

from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ILLEGAL_SASL_STATE
from penstock.gateways.kafka.handlers import handles
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2))
def handle(_request: SaslAuthenticateRequest, _context: RequestContext) -> SaslAuthenticateResponse:
    """As a Kafka broker answers on a listener without SASL."""
    return SaslAuthenticateResponse(ILLEGAL_SASL_STATE, "This connection needs no login, or has it already")
