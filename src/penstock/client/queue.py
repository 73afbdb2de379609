"""Queues over HTTP: publish records, lease them, and ack or nack them.

A queue is a topic that a group consumes with leases. A leased record belongs to its owner until the lease expires: ack finishes it,
nack returns it for another attempt, extend renews the lease. Each worker needs a unique name, the ``owner``; by default one is
generated. A :class:`QueueClient` is synchronous and not thread-safe.
"""

import os
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Final
from uuid import uuid4

import msgspec

from penstock.client.http import HTTP_DEFAULT, TIMEOUT_MS, Fields, HttpClient, HttpSession
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.text import bytes_of, text_of


class RecordBody(msgspec.Struct, frozen=True, kw_only=True):
    """What all records in responses of ``/v1`` have. Bytes that are not text are base64, with their encoding beside them."""

    partition: int
    offset: int
    attempts: int
    timestamp: int
    key: str = ""
    value: str | None = None
    last_error: str = ""
    envelope: dict[str, object] = {}
    headers: dict[str, str | None] = {}
    encoding: str | None = None
    key_encoding: str | None = None
    header_encodings: dict[str, str] = {}


class _LeasedBody(RecordBody, frozen=True, kw_only=True):
    topic: str
    lease_until_ms: int | None = None


class LeasedRecord(msgspec.Struct, frozen=True):
    """A record that is leased to this worker. ``attempts`` counts its deliveries, including this one."""

    topic: str
    partition: int
    offset: int
    group: str
    owner: str
    attempts: int
    key: bytes
    value: bytes | None
    headers: Mapping[str, bytes | None]
    envelope: Mapping[str, object]
    timestamp: int
    last_error: str
    lease_until_ms: int | None = None
    """Unix time in milliseconds; not set for records from :meth:`QueueClient.consume`."""

    @property
    def id(self) -> str:
        """The id for people and APIs: ``orders/0@42``."""
        return f"{self.topic}/{self.partition}@{self.offset}"


class Produced(msgspec.Struct, frozen=True):
    """The position of a record; ``duplicate`` if its idempotency key was known and nothing was appended."""

    topic: str
    partition: int
    offset: int
    duplicate: bool = False


class _Created(msgspec.Struct):
    name: str
    partitions: int


class _Leased(msgspec.Struct):
    records: list[_LeasedBody]


class QueueClient(HttpClient):
    """A worker or producer for queues. Leases from :meth:`lease` remain valid until they expire, even after the client is closed."""

    def __init__(
        self,
        address: str = HTTP_DEFAULT,
        *,
        owner: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        security: ClientSecurity = UNSECURED,
    ) -> None:
        super().__init__(address, timeout_ms=timeout_ms, security=security)
        self.owner: Final = owner or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._address = address

    # -- workers

    def lease(
        self, topic: str, group: str, *, max_records: int = 1, lease_ms: int = 0, wait_ms: int = 0
    ) -> list[LeasedRecord]:
        """Lease some records, once; returns none if there are none within ``wait_ms``. ``lease_ms`` of 0 is the broker's default."""
        body = {
            "topic": topic,
            "group": group,
            "owner": self.owner,
            "max_records": max_records,
            "lease_ms": lease_ms,
            "wait_ms": wait_ms,
        }
        answer = self._http.post("/v1/lease", body, _Leased, wait_ms=wait_ms)
        return [_leased(body, group, self.owner) for body in answer.records]

    def consume(
        self,
        topic: str,
        group: str,
        *,
        lease_ms: int = 0,
        max_in_flight: int = 0,
        release_on_disconnect: bool = False,
    ) -> Generator[LeasedRecord, None, None]:
        """Iterate over records as they arrive, without an end; each is leased to this worker from its delivery on.

        At most ``max_in_flight`` (0: the broker's default, 16) are leased to it at a time, and all leases run at the same time: request fewer records, or
        a longer ``lease_ms``, if processing a record takes long.
        The iterator has its own connection, which is closed with the iterator. Records that were not acked by then stay leased: the same
        owner gets them first when it consumes again, other workers when the lease expires. With ``release_on_disconnect``, other
        workers get them at once, and the delivery does not count as an attempt, even if this worker crashed on it.
        """
        query = {"topic": topic, "group": group, "owner": self.owner, "lease_ms": lease_ms}
        query["max_in_flight"] = max_in_flight
        if release_on_disconnect:
            query["release_on_disconnect"] = "true"
        connection = HttpSession(self._address, timeout_ms=self.timeout_ms, security=self.security)
        with closing(connection.stream("GET", "/v1/consume", _LeasedBody, query=query)) as bodies:
            for body in bodies:
                yield _leased(body, group, self.owner)

    def ack(self, *records: LeasedRecord) -> None:
        """Ack records: they are never delivered again. For each partition, all records are acked, or none."""
        for (topic, group, owner, partition), offsets in _by_partition(records).items():
            self.ack_offsets(topic, group, partition, offsets, owner=owner)

    def ack_offsets(
        self, topic: str, group: str, partition: int, offsets: Sequence[int], *, owner: str | None = None
    ) -> None:
        """Ack records by their offsets in a partition."""
        self._http.post_only(
            "/v1/ack", {**self._names(topic, group, owner), "partition": partition, "offsets": offsets}
        )

    def nack(self, record: LeasedRecord, reason: str = "") -> None:
        """Nack a record: it is delivered again after its backoff, or becomes a dead letter after its last attempt."""
        self.nack_offsets(record.topic, record.group, record.partition, [record.offset], reason, owner=record.owner)

    def nack_offsets(
        self,
        topic: str,
        group: str,
        partition: int,
        offsets: Sequence[int],
        reason: str = "",
        *,
        owner: str | None = None,
    ) -> None:
        """Nack records by their offsets in a partition: all of them, or none."""
        body = {**self._names(topic, group, owner), "partition": partition, "offsets": offsets, "reason": reason}
        self._http.post_only("/v1/nack", body)

    def extend(self, record: LeasedRecord, lease_ms: int) -> None:
        """Renew the lease of a record for ``lease_ms`` from now."""
        body = {
            **self._names(record.topic, record.group, record.owner),
            "partition": record.partition,
            "offset": record.offset,
            "lease_ms": lease_ms,
        }
        self._http.post_only("/v1/extend", body)

    def _names(self, topic: str, group: str, owner: str | None) -> Fields:
        return {"topic": topic, "group": group, "owner": owner or self.owner}

    # -- producers

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic; if it exists with the same number of partitions, nothing changes."""
        self._http.post("/v1/topics", {"name": topic, "partitions": partitions}, _Created)

    def produce(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        idempotency_key: str | None = None,
        tenant_id: str | None = None,
        max_attempts: int | None = None,
        backoff_ms: int | None = None,
        max_backoff_ms: int | None = None,
        delay_ms: int | None = None,
        deadline: str | None = None,
    ) -> Produced:
        """Publish a record. With an ``idempotency_key``, it is safe to repeat the call if there was no response.

        ``deadline`` is RFC 3339; the record is not delivered after it. ``delay_ms`` delays the delivery.
        """
        retry = _given(max_attempts=max_attempts, backoff_ms=backoff_ms, max_backoff_ms=max_backoff_ms)
        envelope = _given(
            idempotency_key=idempotency_key,
            tenant_id=tenant_id,
            partition_override=partition,
            delay_ms=delay_ms,
            deadline=deadline,
            retry_policy=retry or None,
        )
        value_text, encoding = text_of(value.encode() if isinstance(value, str) else value)
        key_text, key_encoding = text_of(key.encode() if isinstance(key, str) else key)
        body = {
            "topic": topic,
            "value": value_text,
            "encoding": encoding,
            "key": key_text,
            "key_encoding": key_encoding,
            "envelope": envelope or None,
        }
        return self._http.post("/v1/produce", body, Produced)


def _leased(body: _LeasedBody, group: str, owner: str) -> LeasedRecord:
    return LeasedRecord(
        topic=body.topic,
        partition=body.partition,
        offset=body.offset,
        group=group,
        owner=owner,
        attempts=body.attempts,
        key=bytes_of(body.key, body.key_encoding),
        value=None if body.value is None else bytes_of(body.value, body.encoding),
        headers={
            name: None if text is None else bytes_of(text, body.header_encodings.get(name))
            for name, text in body.headers.items()
        },
        envelope=body.envelope,
        timestamp=body.timestamp,
        last_error=body.last_error,
        lease_until_ms=body.lease_until_ms,
    )


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _by_partition(records: Sequence[LeasedRecord]) -> dict[tuple[str, str, str, int], list[int]]:
    found: dict[tuple[str, str, str, int], list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.group, record.owner, record.partition), []).append(record.offset)
    return found
