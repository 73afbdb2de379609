"""Operations and streams that other nodes send because they belong to this node, which never sends them on.

Each is begun as it arrives, and answered when it is done, in any order. Above the limit they are refused, but still read: what
follows on the connection may cancel one of them.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.operations.handling import Cancel, OpenStream
from penstock.core.security.access import Caller, Principal
from penstock.errors import PenstockError, Reason
from penstock.operations.catalogue import operation_decoder
from penstock.operations.operation import AnyOperation, Operation, Stream
from penstock.types import Buffer, Gateway
from penstock.wire.kafka.headers import frame
from penstock.wire.peers import (
    CancelHead,
    DoHead,
    GrantHead,
    OperationAnswer,
    decode_operation_request,
    refusal_answer,
)

if TYPE_CHECKING:
    from penstock.gateways.peers.gateway import PeerGateway

logger = logging.getLogger("penstock.peers")

UNDER_WAY_MAX: Final = 10_000
"""Operations and streams of one connection."""


class PeerOperations:
    """The operations of one connection."""

    def __init__(self, gateway: "PeerGateway", answer: Callable[[list[Buffer]], None]) -> None:
        self._gateway = gateway
        self._door = gateway.broker.door
        self._write_answer = answer
        self._under_way: dict[int, Cancel | None] = {}
        """By number: what cancels the operation, if it can be cancelled."""
        self._flows: dict[int, OpenStream] = {}
        self._closed = False

    def close(self) -> None:
        """The connection is closed. What was begun and cannot be cancelled ends by itself."""
        self._closed = True
        flows, self._flows = self._flows, {}
        under_way, self._under_way = self._under_way, {}
        for flow in flows.values():
            flow.close()
        for cancel in under_way.values():
            if cancel is not None:
                cancel()

    def begin(self, api: int, number: int, body: memoryview) -> None:
        """Handle a request; ProtocolViolation if it cannot be decoded."""
        head, data = decode_operation_request(api, body)
        if isinstance(head, DoHead):
            try:
                self._carry_out(head, number, data)
            except PenstockError as error:
                self._finish(number, refusal_answer(error))
            except Exception:
                logger.exception("operation %s failed", head.name)
                unexpected = PenstockError(Reason.UNKNOWN, "The node that was asked failed. Its log says why.")
                unexpected.begun = True
                self._finish(number, refusal_answer(unexpected))
        elif isinstance(head, GrantHead):
            if (flow := self._flows.get(head.number)) is not None:
                flow.grant(head.count)
        elif isinstance(head, CancelHead):
            self._cancel(head.number)

    def _carry_out(self, head: DoHead, number: int, data: memoryview) -> None:
        if len(self._under_way) + len(self._flows) >= UNDER_WAY_MAX:
            raise PenstockError(
                Reason.COORDINATOR_NOT_AVAILABLE,
                f"{UNDER_WAY_MAX} operations of one node are under way, which is the most. Try again in a moment.",
            )
        asked = _decoded(head.name, data)
        caller = Caller(
            Principal(head.principal),
            Gateway(head.gateway),
            head.client,
            head.groups,
            head.listener,
            head.method,
            head.client_id,
            head.request_id,
        )
        if isinstance(asked, Stream):
            self._open(asked, caller, number)
        else:
            assert isinstance(asked, Operation)
            self._under_way[number] = None
            cancel = self._door.begin_here(asked, caller, partial(self._done, number), is_carried=True)
            if cancel is not None and number in self._under_way:
                self._under_way[number] = cancel

    def _done(self, number: int, found: object) -> None:
        if isinstance(found, PenstockError):
            found.begun = True
            self._finish(number, refusal_answer(found))
        else:
            self._finish(number, OperationAnswer(msgspec.Raw(msgspec.msgpack.encode(found))))

    def _open(self, stream: Stream[Any], caller: Caller, number: int) -> None:
        over = False

        def on_end(error: PenstockError | None) -> None:
            nonlocal over
            over = True
            self._flows.pop(number, None)
            self._finish(number, OperationAnswer() if error is None else refusal_answer(error))

        flow = self._door.open_here(stream, caller, partial(self._items, number), on_end)
        if not over:
            self._flows[number] = flow
            # Reports that it is open, even if there are no items yet.
            self._items(number, ())

    def _items(self, number: int, items: Sequence[object]) -> None:
        self._answer(number, OperationAnswer(msgspec.Raw(msgspec.msgpack.encode(items)), last=False))

    def _cancel(self, number: int) -> None:
        flow = self._flows.pop(number, None)
        if flow is not None:
            flow.close()
            self._answer(number, OperationAnswer())
        elif (cancel := self._under_way.get(number)) is not None:
            cancel()
            self._finish(number, OperationAnswer())

    def _finish(self, number: int, answer: OperationAnswer) -> None:
        self._under_way.pop(number, None)
        self._answer(number, answer)

    def _answer(self, number: int, answer: OperationAnswer) -> None:
        if not self._closed:
            self._write_answer(frame(number, 0, [msgspec.msgpack.encode(answer)]))


def _decoded(name: str, data: memoryview) -> AnyOperation[Any]:
    decoder = operation_decoder(name)
    if decoder is None:
        raise PenstockError(
            Reason.UNSUPPORTED_VERSION,
            f"The node that this belongs to does not know {name[:64]!a}: its release is older. Upgrade it, then try again.",
        )
    try:
        asked: AnyOperation[Any] = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PenstockError(
            Reason.UNSUPPORTED_VERSION,
            f"The node that this belongs to cannot read {name[:64]!a} ({error}). Upgrade the older of the two, then try again.",
        ) from error
    return asked
