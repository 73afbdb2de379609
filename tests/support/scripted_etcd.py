"""A server that speaks etcd's protocol and says what a test tells it to: for answers that a real etcd gives only now and then."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc
import grpc.aio

from penstock.address import Address
from penstock.wire.etcd import etcd_generated as pb

Watching = Callable[["ScriptedEtcd", pb.WatchCreateRequest], AsyncIterator[pb.WatchResponse]]


class ScriptedEtcd:
    """``async with ScriptedEtcd() as etcd``. Without a script, reads find nothing, watches are silent, and calls are refused."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: list[pb.KeyValue] = []
        self.watch_scripts: list[Watching] = []
        """One for each watch, in the order in which they begin."""
        self.started_at: list[int] = []
        """Where watches were asked to begin."""
        self.watch_metadata: list[dict[str, str]] = []
        self.keep_alive: Callable[[], Awaitable[pb.LeaseKeepAliveResponse | None]] | None = None
        self.status_refusals: float = 0
        """How many of the next Status calls are refused."""
        self.version = "3.5.33"
        self.ended = asyncio.Event()
        self.address = Address("127.0.0.1", 0)
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Self:
        self._server.add_generic_rpc_handlers(
            (
                _handlers("KV", Range=_unary(self._range, pb.RangeRequest)),
                _handlers("Maintenance", Status=_unary(self._status, pb.StatusRequest)),
                _handlers("Watch", Watch=_stream(self._watch, pb.WatchRequest)),
                _handlers("Lease", LeaseKeepAlive=_stream(self._keep_alive, pb.LeaseKeepAliveRequest)),
            )
        )
        self.address = Address("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        await self._server.start()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self.ended.set()
        await self._server.stop(None)

    def header(self, revision: int | None = None) -> pb.ResponseHeader:
        """At this revision, from which on there is no way back."""
        self.revision = max(self.revision, revision or 0)
        return pb.ResponseHeader(revision=self.revision)

    async def _range(self, _request: pb.RangeRequest, _context: Any) -> pb.RangeResponse:
        return pb.RangeResponse(header=self.header(), kvs=self.entries)

    async def _status(self, _request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        if self.status_refusals:
            self.status_refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted")
        return pb.StatusResponse(header=self.header(), leader=1, version=self.version)

    async def _watch(self, requests: AsyncIterator[pb.WatchRequest], context: Any) -> AsyncIterator[pb.WatchResponse]:
        request = await anext(requests)
        self.started_at.append(request.create_request.start_revision)
        self.watch_metadata.append(dict(context.invocation_metadata()))
        yield pb.WatchResponse(header=self.header(), created=True)
        if self.watch_scripts:
            async for response in self.watch_scripts.pop(0)(self, request.create_request):
                yield response
        else:
            await self.ended.wait()

    async def _keep_alive(
        self, requests: AsyncIterator[pb.LeaseKeepAliveRequest], _context: Any
    ) -> AsyncIterator[pb.LeaseKeepAliveResponse]:
        await anext(requests)
        assert self.keep_alive is not None
        answer = await self.keep_alive()
        if answer is not None:
            yield answer


def put(key: str, revision: int, value: bytes = b"") -> pb.Event:
    """An event of cluster ``c``."""
    raw = pb.KeyValue(key=b"/penstock/c/" + key.encode(), create_revision=revision, mod_revision=revision, value=value)
    return pb.Event(type=pb.Event.PUT, kv=raw)


def _handlers(service: str, **methods: grpc.RpcMethodHandler) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", methods)


def _unary(handle: Any, request: Any) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(handle, request.FromString, lambda answer: answer.SerializeToString())


def _stream(handle: Any, request: Any) -> grpc.RpcMethodHandler:
    return grpc.stream_stream_rpc_method_handler(handle, request.FromString, lambda answer: answer.SerializeToString())
