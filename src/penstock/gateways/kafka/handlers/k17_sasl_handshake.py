"""SaslHandshake (API key 17) on a connection that needs no login, or has it: refused. A login is ``login.py``'s. Version 1 announces SaslAuthenticate."""

from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ILLEGAL_SASL_STATE
from penstock.gateways.kafka.handlers import handles
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
def handle(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    """As a Kafka broker answers on a listener without SASL."""
    return SaslHandshakeResponse(ILLEGAL_SASL_STATE)
