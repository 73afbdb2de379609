"""The metadata store of a cluster: etcd's keys below ``/penstock/<cluster>/``. Consensus is etcd's alone.

Reads are linearizable. A transaction returns after its own events were delivered, as with every store. If etcd cannot be
reached, calls fail with METADATA_UNAVAILABLE within some seconds; when it can be reached again, changes are followed again.

A transaction is never sent twice. If its response is lost, it may have been applied, or may still be: a caller that repeats it
finds out by its compares.
"""

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final, Self

import grpc
import grpc.aio

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd.endpoints import (
    ANSWER_SECONDS,
    KEEP_ALIVE_SECONDS,
    AccessRefusedError,
    EtcdEndpoints,
    NoAnswerError,
    StoreMember,
    Tls,
)
from penstock.metadata.etcd.watch import Watch
from penstock.metadata.port import (
    Compare,
    Delete,
    Entry,
    Operation,
    Put,
    Range,
    Subscriber,
    TxnResult,
    UnknownOutcomeError,
    Unsubscribe,
    check_txn,
)
from penstock.metadata.subscribers import Subscribers
from penstock.wire.etcd import etcd_generated as pb

logger = logging.getLogger("penstock.metadata")

OPERATIONS_MAX: Final = 128
"""etcd's own bound (``--max-txn-ops``), on compares and on operations."""
_KEYS_PER_PAGE: Final = 1_000
"""Far below the message limit for usual values; for larger ones, pages get smaller."""
_READS_MAX: Final = 10
"""How often a read is restarted because etcd compacted its revision."""
_DELIVERY_SECONDS: Final = 5.0
_LOSING_VERSIONS: Final = ("3.5.0", "3.5.1", "3.5.2")
"""Their members can differ permanently after a crash, according to etcd's release notes."""


class _NoPage(Enum):
    """Why a page cannot be read."""

    TOO_LARGE = "too large"
    COMPACTED = "compacted"


class EtcdStore:
    """A :class:`~penstock.metadata.port.SharedStore`. Made by :meth:`open`."""

    operations_max: Final = OPERATIONS_MAX

    def __init__(self, cluster: str, endpoints: EtcdEndpoints) -> None:
        self._prefix = f"/penstock/{cluster}/".encode()
        self._endpoints = endpoints
        self._subscribers = Subscribers()
        end, deliver = _end_of(self._prefix), self._subscribers.deliver
        self._watch = Watch(endpoints, self._prefix, end, self._entry, self._read_all, deliver)
        self._closed = False

    @classmethod
    async def open(cls, cluster: str, addresses: list[Address], tls: Tls | None = None) -> Self:
        """Connect, and follow the cluster's keys.

        METADATA_UNAVAILABLE if no member responds, INVALID_CONFIG if none ever will with these settings.
        """
        store = cls(cluster, EtcdEndpoints(addresses, tls))
        try:
            found = await store._read_all()
            await store._look_at_version()
            # Last: nothing is delivered before the caller can subscribe.
            store._watch.start(found)
        except BaseException as error:
            if isinstance(error, AccessRefusedError):
                what = f"or give the user that its common name is permission to read and write the prefix {store._prefix.decode()} (docs/cluster.md)"
                error = PenstockError(Reason.INVALID_CONFIG, f"{error.text}, {what}")
            elif isinstance(error, PenstockError) and store._endpoints.advice:
                error = PenstockError(Reason.INVALID_CONFIG, error.text)
            await store.close()
            raise error from None
        return store

    async def _look_at_version(self) -> None:
        status: pb.StatusResponse = await self._endpoints.ask(
            lambda member: member.status(pb.StatusRequest(), timeout=ANSWER_SECONDS)
        )
        version = status.version
        if version in _LOSING_VERSIONS:
            logger.warning(
                "etcd %s is known to lose data when it is killed; install 3.5.3 or later, preferably the latest patch release",
                version,
            )

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._watch.stop()
            await self._endpoints.close()

    @property
    def revision_seen(self) -> int:
        """Everything up to here was delivered."""
        return self._watch.revision

    # Reading.

    async def range(self, prefix: str) -> Range:
        """All of one revision, read in pages."""
        self._check_open()
        for _ in range(_READS_MAX):
            found = await self._pages(self._prefix + prefix.encode())
            if found is not None:
                return found
        raise PenstockError(
            Reason.METADATA_UNAVAILABLE,
            "The keys of etcd are compacted faster than they can be read; set a longer --auto-compaction-retention",
        )

    async def _pages(self, start: bytes) -> Range | None:
        """None if the revision was compacted before all pages were read."""
        end = _end_of(start)
        entries: list[Entry] = []
        revision, limit = 0, _KEYS_PER_PAGE
        while True:
            page = await self._page(start, end, revision, limit)
            if page is _NoPage.COMPACTED:
                return None
            if page is _NoPage.TOO_LARGE:
                limit = max(1, limit // 4)
                continue
            assert isinstance(page, pb.RangeResponse)
            revision = revision or page.header.revision
            entries += map(self._entry, page.kvs)
            if not page.more:
                return Range(revision, tuple(entries))
            start = page.kvs[-1].key + b"\0"

    async def _page(self, start: bytes, end: bytes, revision: int, limit: int) -> pb.RangeResponse | _NoPage:
        request = pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)

        async def read(member: StoreMember) -> pb.RangeResponse | _NoPage:
            try:
                return await member.range(request, timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.OUT_OF_RANGE and revision:
                    return _NoPage.COMPACTED
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (error.details() or ""):
                    return _NoPage.TOO_LARGE
                raise

        return await self._endpoints.ask(read)

    async def _read_all(self) -> Range:
        return await self.range("")

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        request = pb.RangeRequest(key=self._prefix + key.encode())
        found: pb.RangeResponse = await self._endpoints.ask(
            lambda member: member.range(request, timeout=ANSWER_SECONDS)
        )
        return self._entry(found.kvs[0]) if found.kvs else None

    def _entry(self, raw: pb.KeyValue) -> Entry:
        key = raw.key[len(self._prefix) :].decode()
        return Entry(key, raw.value, raw.create_revision, raw.mod_revision, raw.lease)

    # Changing.

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations, OPERATIONS_MAX)
        self._check_open()
        request = pb.TxnRequest(
            compare=[each for compare in compares for each in self._compares(compare)],
            success=[self._operation(operation) for operation in operations],
        )

        done: pb.TxnResponse = await self._endpoints.ask_once(
            lambda member: member.txn(request, timeout=ANSWER_SECONDS)
        )
        revision = done.header.revision
        if done.succeeded and _changes(done, operations) and not await self._watch.reached(revision, _DELIVERY_SECONDS):
            raise UnknownOutcomeError(
                Reason.METADATA_UNAVAILABLE, "A change was made, but etcd has not reported it yet"
            )
        return TxnResult(done.succeeded, revision)

    def _compares(self, compare: Compare) -> list[pb.Compare]:
        key = self._prefix + compare.key.encode()
        found: list[pb.Compare] = []
        if compare.create_revision is not None:
            found.append(pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=compare.create_revision))
        if compare.mod_revision is not None:
            found.append(pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=compare.mod_revision))
        return found

    def _operation(self, operation: Operation) -> pb.RequestOp:
        key = self._prefix + operation.key.encode()
        match operation:
            case Put(value=value, lease=lease):
                return pb.RequestOp(request_put=pb.PutRequest(key=key, value=bytes(value), lease=lease))
            case Delete():
                return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        return self._subscribers.add(prefix, subscriber)

    # Leases.

    async def grant(self, ttl_ms: int) -> int:
        self._check_open()
        request = pb.LeaseGrantRequest(TTL=max(1, -(-ttl_ms // 1000)))
        # A repeated request may leave an unused lease, which expires.
        granted: pb.LeaseGrantResponse = await self._endpoints.ask(
            lambda member: member.grant(request, timeout=ANSWER_SECONDS)
        )
        return granted.ID

    async def keep_alive(self, lease: int) -> int:
        self._check_open()

        async def renew(member: StoreMember) -> int:
            call = member.keep_alive(timeout=KEEP_ALIVE_SECONDS)
            try:
                await call.write(pb.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
            except asyncio.InvalidStateError:
                # The call ended before the request was sent.
                raise NoAnswerError("The member ended the call") from None
            finally:
                call.cancel()
            if answer is grpc.aio.EOF:
                # A member that stops says nothing about the lease.
                raise NoAnswerError("The member ended the call")
            return int(answer.TTL) * 1000

        return await self._endpoints.ask(renew)

    async def revoke(self, lease: int) -> None:
        self._check_open()

        request = pb.LeaseRevokeRequest(ID=lease)
        try:
            await self._endpoints.ask(lambda member: member.revoke(request, timeout=ANSWER_SECONDS))
        except PenstockError as error:
            # It has expired already.
            if error.reason is not Reason.INVALID_REQUEST:
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError(Reason.STORAGE_ERROR, "The metadata store is closed; the broker is shutting down.")
        if self._watch.problem is not None:
            raise PenstockError(self._watch.problem.reason, self._watch.problem.text)


def _end_of(prefix: bytes) -> bytes:
    """The first key after all that have the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _changes(done: pb.TxnResponse, operations: Sequence[Operation]) -> bool:
    """Whether anything was changed, so that there are events: deleting an absent key changes nothing."""
    return any(
        isinstance(operation, Put) or response.response_delete_range.deleted
        for operation, response in zip(operations, done.responses, strict=True)
    )
