"""The gRPC listener: grpcio's server in the broker's event loop, with reflection and the standard health service.

``bind`` is called before the broker touches anything; ``start`` serves. grpc opens the port itself, so no socket can be passed to it.
``bind`` opens the port for a moment first, so that a port in use gives the same error as for every other listener.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

# grpc's core writes to stderr in a format of its own; relevant errors are raised here anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.gateways.grpc.call import Serving
from penstock.gateways.grpc.logins import GuardedReflection, Logins
from penstock.gateways.grpc.service import SERVICE, handlers
from penstock.gateways.grpc.tls import credentials_of
from penstock.limits import GRPC_CONNECTION_STREAMS_MAX, GRPC_LOOKAHEAD_BYTES, HANDSHAKE_MS_MAX
from penstock.settings import GrpcSettings, LimitSettings
from penstock.transport.listener import Listener
from penstock.transport.listening import address_of, bind
from penstock.wire.mq import mq_generated as mq

if TYPE_CHECKING:
    from penstock.transport.tls import ServerTls

_PING_INTERVAL_MS_MIN: Final = 10_000
"""A client that pings more often without sending data is warned, and then disconnected."""
_PING_STRIKES_MAX: Final = 3
_KEEPALIVE_MS: Final = 60_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000
_METADATA_BYTES_MAX: Final = 16 * 1024
_OTHER_CALLS_MAX: Final = 1000
"""Calls of health and reflection, and those that grpc counts for a moment after their end. ``Serving.enter`` counts all others exactly."""
_LAST_CALLS_SECONDS: Final = 0.05
_STREAM_GRACE_SECONDS: Final = 2.0
"""Streams end by themselves at once, unless their clients do not read; a busy machine needs a little longer."""


def _options(settings: GrpcSettings, limits: LimitSettings) -> Sequence[tuple[str, int]]:
    return (
        # Otherwise two brokers could listen on the same port, and share its clients unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", GRPC_CONNECTION_STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.max_connection_idle_ms", limits.connection_idle_ms_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
        ("grpc.http2.max_ping_strikes", _PING_STRIKES_MAX),
    )


_BEFORE_LOGINS: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", GRPC_LOOKAHEAD_BYTES))
"""Otherwise grpc lets clients send megabytes ahead for each call, also for one whose login waits and whose request is not read."""


def _pool() -> descriptor_pool.DescriptorPool:
    """The descriptors for reflection: the messages of this API have their own pool, which must have the standard services, too."""
    pool = mq.DESCRIPTOR.pool
    for standard in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(standard.DESCRIPTOR.serialized_pb)
    return pool


class GrpcGateway:
    """The gRPC gateway of a node."""

    def __init__(self, settings: GrpcSettings, limits: LimitSettings, *, asks_for_logins: bool = False) -> None:
        options = (*_options(settings, limits), *(_BEFORE_LOGINS if asks_for_logins else ()))
        self._server: Any = grpc.aio.server(
            options=options, maximum_concurrent_rpcs=settings.streams_max + _OTHER_CALLS_MAX
        )
        self._limits: Final = limits
        self._health: Any = health.aio.HealthServicer()
        self._serving: Serving | None = None
        self._stopped = False
        self.listener: Listener | None = None
        """Set once the port is open."""

    def bind(self, address: Address, tls: "ServerTls | None" = None) -> Address:
        """Open the port; port 0 picks a free one. OSError if it is not available."""
        probe = bind(address)
        found = address_of(probe)
        probe.close()
        try:
            port = self._open(str(Address(found.host, address.port)), tls)
        except RuntimeError as error:
            raise OSError(f"gRPC could not listen on {found}") from error
        self.listener = Listener("grpc", Address(found.host, port), tls=tls)
        return self.listener.address

    def _open(self, address: str, tls: "ServerTls | None") -> int:
        if tls is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, credentials_of(tls)))

    async def start(self, broker: Broker) -> None:
        """Serve."""
        assert self.listener is not None, "call bind first"
        serving = self._serving = Serving(broker, self.listener)
        logins = Logins(serving, self._limits)
        self._server.add_generic_rpc_handlers((handlers(logins),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            GuardedReflection(logins, names, _pool()), self._server
        )
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more calls, end the streams, answer what is under way, then close everything.

        A gateway that was never started closes its port. A second stop does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        if self._serving is None:
            # grpc only closes the sockets of a server that has run.
            await self._server.start()
            await self._server.stop(None)
            return
        self._serving.stop()
        await self._health.enter_graceful_shutdown()
        # Calls that have just arrived would otherwise fail as cancelled.
        await asyncio.sleep(min(grace_seconds, _LAST_CALLS_SECONDS))
        stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        await asyncio.wait({stopping}, timeout=min(grace_seconds, _STREAM_GRACE_SECONDS))
        if not stopping.done():
            self._serving.cut_off()
            await self._serving.drained(grace_seconds)
            stopping.cancel()
            await asyncio.wait({stopping})
        await self._server.stop(None)
