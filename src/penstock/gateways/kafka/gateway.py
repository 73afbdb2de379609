"""The Kafka listener: its bounds, which APIs are served, and a stop that lets nobody wait for what will not come."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.core.broker import Broker
from penstock.gateways.connections import ConnectionGateway
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.fetch_session import FetchSessions
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.gateways.receive import BufferPool
from penstock.meters import Histogram
from penstock.ports import EndOfTurn
from penstock.settings import LimitSettings
from penstock.types import Gateway
from penstock.wire.kafka.api_versions_generated import ApiVersionsResponseApiKey
from penstock.wire.kafka.apis import API, Api, ApiKey, DecodeTable, EncodeTable

LARGE_REQUESTS_MAX: Final = 4
"""So many large requests are under way: the others stay bytes, of which each element would take some hundred more."""
_QUICK_SHARE: Final = 0.1
"""Of the grace of a stop: so long requests have that wait for the disk alone."""


class Served:
    """One API as this gateway serves it. The codec is imported when a client first uses the API."""

    __slots__ = ("_api", "handle", "latency", "max_version", "min_version", "name")

    def __init__(self, api: Api, handle: Callable[[Any, Any], Any], latency: Histogram) -> None:
        self._api = api
        self.latency = latency
        self.name = api.name
        self.min_version = api.min_version
        self.max_version = api.max_version
        self.handle = handle

    @property
    def decode(self) -> DecodeTable:
        """By version."""
        return self._api.decode_request_table

    @property
    def encode(self) -> EncodeTable:
        """By version."""
        return self._api.encode_response_table

    def header_version(self, version: int) -> int:
        """Of the response."""
        return self._api.response_header_version(version)


class KafkaGateway(ConnectionGateway[KafkaConnection]):
    """All Kafka connections of this node."""

    def __init__(self, broker: Broker, turn: EndOfTurn, limits: LimitSettings) -> None:
        super().__init__(Gateway.KAFKA, broker, turn, limits)
        self.buffers: Final = BufferPool()
        self.fetch_sessions: Final = FetchSessions(broker.entropy, limits.fetch_sessions_max)
        meters = broker.meters
        self.served: Final = {
            int(key): Served(API[key], handle, meters.latency(Gateway.KAFKA, API[key].name))
            for key, handle in HANDLERS.items()
        }
        self.produce_latency: Final = self.served[ApiKey.PRODUCE].latency
        self.fetch_latency: Final = self.served[ApiKey.FETCH].latency
        self.advertised: Final = [
            ApiVersionsResponseApiKey(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in sorted(self.served.items())
        ]
        self.codec_thread: Final = ThreadPoolExecutor(1, "kafka-codec")
        """Where large requests are read and their answers written: the event loop has its turn every few milliseconds meanwhile."""
        self.large_requests: Final = asyncio.Semaphore(LARGE_REQUESTS_MAX)
        self.unhurried: Final[dict[Callable[[], None], None]] = {}
        """What makes each request answer now that waits for something to happen: called when the gateway stops."""

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        await self._listen(listener, lambda: KafkaConnection(self))

    async def stop(self, grace_seconds: float) -> None:
        """Accept nobody new, answer what is under way, then close everything."""
        self._close()
        for answer_now in list(self.unhurried):
            answer_now()
        if not await self._drain(grace_seconds * _QUICK_SHARE):
            # What is left waits for other members of its group, who will not come.
            self.broker.groups.close()
            if not await self._drain(grace_seconds * (1 - _QUICK_SHARE)):
                self._abort()
        self.codec_thread.shutdown(wait=False, cancel_futures=True)
