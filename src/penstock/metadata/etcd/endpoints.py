"""The members of etcd: requests go to one of them, and if it does not respond, to the next.

A request that can be repeated is repeated, with another member. A transaction is sent once, and only to a connected member: if
the response is lost, it is unknown whether it was applied, and the error says so. Everything has a deadline: a stopped member
keeps its connections, accepts new ones, and does not respond.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import UnknownOutcomeError
from penstock.wire.etcd import etcd_generated as pb

T = TypeVar("T")

ANSWER_SECONDS: Final = 2.0
"""Timeout of one request to one member. A change of etcd's leader takes about as long."""
READ_SECONDS: Final = 5.0
"""How long a request is repeated, with one member after the other."""
KEEP_ALIVE_SECONDS: Final = 1.0
"""Timeout of one request to renew a lease: it must leave time for another member."""
CONNECT_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05
_NOTHING_CHANGED: Final = ". Nothing was changed: try again when it answers"
_NOT_KNOWN: Final = ". Whether the change was made is not known: check when it answers, then try again"
_MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""etcd sends smaller watch responses, and reads use small enough pages."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each channel has one address: the choice of the member is made here.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Only this module may repeat a request: it knows which ones may be repeated.
    ("grpc.enable_retries", 0),
)
_CERTAINLY_NOT: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
_ADVICE: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by a trusted authority: specify the authority's file with --etcd-ca",
    ),
    (
        "is not in peer certificate",
        "its certificate is not for this host: use the name from the certificate in --etcd, or replace etcd's certificate",
    ),
    ("TSI_DATA_CORRUPTED", "it refused this node's certificate, or requires one: check --etcd-cert and --etcd-key"),
    (
        "security handshaker",
        "the files of --etcd-ca, --etcd-cert and --etcd-key cannot be used: they must be in PEM, the key without a password",
    ),
    ("Handshake read failed", "it does not use TLS: write http:// in --etcd"),
    ("WRONG_VERSION_NUMBER", "it does not use TLS: write http:// in --etcd"),
    (
        "database space exceeded",
        "its quota is exhausted: compact and defragment it, then `etcdctl alarm disarm`, and turn on auto-compaction",
    ),
)
"""What to do about some errors, by words in them. If etcd or gRPC change their words, only the advice is lost."""
_NOT_PLAIN: Final = "it may require TLS (then write https:// in --etcd), or may not be etcd"
"""A member that expects TLS closes other connections."""


class AccessRefusedError(PenstockError):
    """The user in this node's certificate has no permission in etcd, or there is no such user."""


class NoAnswerError(Exception):
    """A member ended a call without a response."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The settings of TLS, as the contents of files in PEM. The key and the certificate authenticate this node."""

    ca: bytes | None = None
    key: bytes | None = None
    certificate: bytes | None = None


class StoreMember:
    """One member of etcd."""

    def __init__(self, address: Address, tls: Tls | None) -> None:
        self.address: Final = address
        self.left: Final = asyncio.Event()
        """Set while another member is used."""
        self.channel: Final = _channel(str(address), tls)
        unary, stream = self.channel.unary_unary, self.channel.stream_stream
        self.range: Final = _call(unary, "KV/Range", pb.RangeRequest, pb.RangeResponse)
        self.txn: Final = _call(unary, "KV/Txn", pb.TxnRequest, pb.TxnResponse)
        self.grant: Final = _call(unary, "Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
        self.revoke: Final = _call(unary, "Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
        self.status: Final = _call(unary, "Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
        self.keep_alive: Final = _call(
            stream, "Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
        )
        self.watch: Final = _call(stream, "Watch/Watch", pb.WatchRequest, pb.WatchResponse)

    async def is_connected(self, seconds: float) -> bool:
        """Whether it is connected, within this time."""
        state = self.channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(seconds):
                while state is not grpc.ChannelConnectivity.READY:
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True


def _channel(target: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


def _call(kind: Callable[..., Any], method: str, request: Any, response: Any) -> Any:
    return kind(
        f"/etcdserverpb.{method}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )


class EtcdEndpoints:
    """All members. One is used until it fails."""

    def __init__(self, addresses: list[Address], tls: Tls | None = None) -> None:
        assert addresses
        self._members = [StoreMember(address, tls) for address in addresses]
        self._at = 0
        self._failing_since: float | None = None
        self._why = ""
        self._is_plain = tls is None

    async def close(self) -> None:
        """Close all connections."""
        for member in self._members:
            await member.channel.close()

    @property
    def current(self) -> StoreMember:
        """The member in use."""
        return self._members[self._at]

    @property
    def advice(self) -> str:
        """What an operator can do about the last failure; empty if it may be temporary."""
        why = self._why
        if self._is_plain and "failed to connect" in why and "Socket closed" in why:
            return _NOT_PLAIN
        return next((advice for words, advice in _ADVICE if words in why), "")

    def failed(self, member: StoreMember, why: str) -> None:
        """A member does not respond: use the next one."""
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        self._why = f"{member.address}: {why}"
        if member is self.current and len(self._members) > 1:
            self._at = (self._at + 1) % len(self._members)
            self.current.left.clear()
            member.left.set()

    def unavailable(self, outcome: str = "") -> PenstockError:
        """The error when no member responds; ``outcome`` says what that means for the request."""
        names = ", ".join(str(member.address) for member in self._members)
        since = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        return PenstockError(
            Reason.METADATA_UNAVAILABLE,
            f"etcd ({names}) cannot be reached for {since:.0f} s: {self.advice or 'retrying'} ({self._why}){outcome}",
        )

    async def connected(self) -> StoreMember:
        """A connected member; METADATA_UNAVAILABLE if there is none."""
        for _ in self._members:
            member = self.current
            if await member.is_connected(CONNECT_SECONDS):
                return member
            self.failed(member, "no connection")
        raise self.unavailable(_NOTHING_CHANGED)

    async def ask(self, request: Callable[[StoreMember], Awaitable[T]]) -> T:
        """The response of the first member that responds, for a request that may be repeated."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_SECONDS
        while True:
            member = self.current
            try:
                answer = await request(member)
            except (grpc.aio.AioRpcError, NoAnswerError) as error:
                self._missed(member, error)
                if loop.time() > deadline:
                    raise self.unavailable() from error
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._failing_since = None
            return answer

    async def ask_once(self, request: Callable[[StoreMember], Awaitable[T]]) -> T:
        """The response to a request that is sent once. After METADATA_UNAVAILABLE it is unknown whether it was applied."""
        member = await self.connected()
        try:
            answer = await request(member)
        except (grpc.aio.AioRpcError, NoAnswerError) as error:
            self._missed(member, error)
            unknown = self.unavailable(_NOT_KNOWN)
            raise UnknownOutcomeError(unknown.reason, unknown.text) from error
        self._failing_since = None
        return answer

    def _missed(self, member: StoreMember, error: grpc.aio.AioRpcError | NoAnswerError) -> None:
        """Note that a request to a member failed; raises if it was refused permanently."""
        refused = _refusal(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if refused is not None:
            self._failing_since = None
            raise refused from error
        self.failed(member, words_of(error))


def _refusal(error: grpc.aio.AioRpcError) -> PenstockError | None:
    """The error if etcd refused a request permanently, and so did not apply it; None if it may have."""
    if error.code() in _CERTAINLY_NOT:
        return PenstockError(Reason.INVALID_REQUEST, f"etcd refused the request: {error.details()}")
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return AccessRefusedError(
            Reason.STORAGE_ERROR,
            f"etcd refused access to this node: {error.details()}; check --etcd-cert and --etcd-key",
        )
    return None


def words_of(error: Exception) -> str:
    """The text of a failed call."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
    return str(error) or "no answer"
