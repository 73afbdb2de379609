"""The Kafka listener: its limits, the APIs that it serves, and a shutdown that answers the requests in progress."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from penstock.core.broker import Broker
from penstock.gateways.connections import ConnectionGateway
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.fetch_session import FetchSessions
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.meters import Histogram
from penstock.ports import EndOfTurn
from penstock.settings import LimitSettings
from penstock.transport.listener import Door, Listener
from penstock.transport.receive import BufferPool
from penstock.types import Buffer, Gateway
from penstock.wire.kafka.api_versions_generated import ApiVersionsResponseApiKey
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import frame

LARGE_REQUESTS_MAX: Final = 4
"""The maximum number of large requests in progress. The others are kept as bytes, because each decoded element takes some hundred bytes more."""
_QUICK_SHARE: Final = 0.1
"""The part of the shutdown grace period for requests that wait only for the disk."""


@dataclass(slots=True)
class Served:
    """One API as this gateway serves it."""

    api: Api
    handle: Callable[[Any, Any], Any]
    versions: range
    latency: Histogram

    def frame(self, correlation_id: int, version: int, response: Struct) -> list[Buffer]:
        """The whole answer."""
        api = self.api
        parts = api.encode_response_table[version](response)
        return frame(correlation_id, api.response_header_version(version), parts)


class KafkaGateway(ConnectionGateway[KafkaConnection]):
    """All Kafka connections of this node."""

    def __init__(self, broker: Broker, turn: EndOfTurn, limits: LimitSettings) -> None:
        super().__init__(Gateway.KAFKA, broker, turn, limits)
        self.buffers: Final = BufferPool()
        self.fetch_sessions: Final = FetchSessions(broker.entropy, limits.fetch_sessions_max)
        meters = broker.meters
        self.served: Final = {
            int(key): Served(API[key], *handler, meters.latency(Gateway.KAFKA, API[key].name))
            for key, handler in HANDLERS.items()
        }
        self.produce_latency: Final = self.served[ApiKey.PRODUCE].latency
        self.fetch_latency: Final = self.served[ApiKey.FETCH].latency
        self.login_latency: Final = self.served[ApiKey.SASL_AUTHENTICATE].latency
        self.advertised: Final = [
            ApiVersionsResponseApiKey(api_key=key, min_version=served.versions[0], max_version=served.versions[-1])
            for key, served in sorted(self.served.items())
        ]
        self.codec_thread: Final = ThreadPoolExecutor(1, "kafka-codec")
        """Decodes large requests and encodes their answers; the event loop runs every few milliseconds meanwhile."""
        self.large_requests: Final = asyncio.Semaphore(LARGE_REQUESTS_MAX)
        self.answer_on_stop: Final[dict[Callable[[], None], None]] = {}
        """Called when the gateway stops; each answers a request that waits for an event."""

    async def start(self, listener: Listener) -> None:
        """Serve a listener; there can be several."""
        await self._listen(listener, Door(lambda arrival: KafkaConnection(self, arrival)))

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more clients, answer the requests in progress, then close all connections."""
        self._close()
        for answer_now in list(self.answer_on_stop):
            answer_now()
        if not await self._drain(grace_seconds * _QUICK_SHARE):
            # The rest waits for other members of groups, which will not come.
            self.broker.groups.close()
            if not await self._drain(grace_seconds * (1 - _QUICK_SHARE)):
                self._abort()
        self.codec_thread.shutdown(wait=False, cancel_futures=True)
