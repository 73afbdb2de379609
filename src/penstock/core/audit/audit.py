"""What is written to the audit log, and when.

Logins, refusals and changes always; reads and writes of data only if ``audit.data`` is set. Refusals, failed logins and data repeat, so only the
first few of each in a minute are written, and a summary after it. A change is written when it has ended, with its result. If the log is
required, it is also written before, and nothing is changed unless that succeeds.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from penstock.core.audit.limiter import Limiter
from penstock.core.audit.record import (
    AuditRecord,
    Effect,
    EventClass,
    Result,
    about_refusal,
    by_caller,
    concerned,
    effect_of,
    encode,
    named,
    shown,
)
from penstock.core.audit.writer import Output, Writer
from penstock.core.security.access import AccessDenied, Caller
from penstock.errors import PenstockError, Reason
from penstock.limits import AUDIT_FIRST_MAX, AUDIT_STOP_MS_MAX
from penstock.operations.operation import Action, AnyOperation, Resource
from penstock.settings import AuditMode, Authentication, Settings
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker

R = TypeVar("R")
_DENIALS: Final = frozenset(
    {
        Reason.TOPIC_AUTHORIZATION_FAILED,
        Reason.GROUP_AUTHORIZATION_FAILED,
        Reason.CLUSTER_AUTHORIZATION_FAILED,
        Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
LOGIN: Final = "Login"

_effect_of = cache(effect_of)


def is_wanted(settings: Settings) -> bool:
    """Whether the audit log is on: as set, or together with authentication."""
    mode = settings.audit.mode
    if mode is AuditMode.AUTO:
        return settings.security.authentication is Authentication.REQUIRED
    return mode is AuditMode.ON


class Audit:
    """The audit log of a node. It is off until :meth:`start`."""

    def __init__(self, broker: "Broker", settings: Settings) -> None:
        self._broker = broker
        self._settings: Final = settings.audit
        self._wanted = is_wanted(settings)
        self.is_on = False
        """Hot paths ask nothing else while it is off."""
        self.records_data = False
        self.is_required = False
        self._writers: list[Writer] = []
        self._limiter: Final = Limiter()

    def start(self, outputs: Sequence[Output]) -> None:
        """Write to these outputs from now on, if the log is wanted."""
        if not self._wanted:
            return
        self._writers = [Writer(output, self._broker.meters, self._broker.report) for output in outputs]
        self.is_on = bool(outputs)
        self.records_data = self.is_on and self._settings.data
        self.is_required = self.is_on and self._settings.required
        if self.is_on:
            self._write(self._record(EventClass.LIFECYCLE, Result.SUCCESS, operation="Start"))

    async def stop(self) -> None:
        """Write that the broker stops, and what is pending; what takes longer is lost."""
        if not self.is_on:
            return
        line = encode(self._record(EventClass.LIFECYCLE, Result.SUCCESS, operation="Stop"))
        self.is_on = self.records_data = self.is_required = False
        for writer in self._writers:
            await self._broker.within(AUDIT_STOP_MS_MAX, _last(writer, line))

    # What is called where it happens.

    def login(self, principal: str, client: str, method: str, failure: str = "") -> None:
        """A client has logged in, or tried to. ``failure`` says why it failed."""
        if not self.is_on:
            return
        result = Result.DENIED if failure else Result.SUCCESS
        record = self._record(
            EventClass.AUTHENTICATION,
            result,
            operation=LOGIN,
            principal=shown(principal),
            client=client,
            method=method,
            reason=failure,
        )
        self._write_few((LOGIN, principal, client, result), record)

    def refused(self, asked: AnyOperation[Any], caller: Caller, error: PenstockError) -> None:
        """An operation was refused before anything was done."""
        operation = type(asked).__name__
        self._denied(operation, caller, concerned(asked) | about_refusal(error))

    def partly_refused(self, asked: AnyOperation[Any], caller: Caller, refused: Sequence[tuple[str, Reason]]) -> None:
        """Some items of an operation were refused, by their names."""
        operation, resource = type(asked).__name__, concerned(asked)["resource_type"]
        for name, reason in dict(refused).items():
            self._denied(operation, caller, named(Resource(resource), [name]) | {"reason": reason.name.lower()})

    def lane_refused(self, caller: Caller, action: Action, topic: str, error: PenstockError) -> None:
        """A produce or a fetch was refused, which are no operations."""
        self._denied(_of_action(action), caller, named(Resource.TOPIC, [topic]) | about_refusal(error))

    def accessed(self, caller: Caller, action: Action, topic: str) -> None:
        """A topic is read or written. Only called if data is recorded."""
        if caller.gateway is Gateway.INTERNAL:
            return
        operation = _of_action(action)
        record = self._record(
            EventClass.API,
            Result.SUCCESS,
            operation=operation,
            **by_caller(caller),
            **named(Resource.TOPIC, [topic]),
        )
        self._write_few((operation, caller.principal, caller.client, topic), record, most=1)

    def used(self, asked: AnyOperation[Any], caller: Caller) -> None:
        """An operation on data is carried out. Only called if data is recorded."""
        if _effect_of(type(asked)) is Effect.DATA and caller.gateway is not Gateway.INTERNAL:
            record = self._about(asked, caller, Result.SUCCESS)
            self._write_few((record.operation, caller.principal, caller.client, record.resources), record, most=1)

    # Changes.

    def follows(self, kind: type[AnyOperation[Any]], caller: Caller) -> bool:
        """Whether the result of an operation is recorded: it changes something, and somebody outside asked for it."""
        return _effect_of(kind) is Effect.CHANGE and caller.gateway is not Gateway.INTERNAL

    async def following(self, asked: AnyOperation[Any], caller: Caller, run: Callable[[], Awaitable[R]]) -> R:
        """Carry out a change and record its result."""
        await self.attempt(asked, caller)
        try:
            result = await run()
        except BaseException as error:
            self.ended(asked, caller, error)
            raise
        self.ended(asked, caller, result)
        return result

    async def attempt(self, asked: AnyOperation[Any], caller: Caller) -> None:
        """If the log is required: write that a change is about to be made. AUDIT_UNAVAILABLE if that fails."""
        if not self.is_required:
            return
        line = encode(self._about(asked, caller, Result.ATTEMPT))
        for writer in self._writers:
            problem = await _awaited(writer, line)
            if problem is not None:
                raise PenstockError(
                    Reason.AUDIT_UNAVAILABLE,
                    "Nothing was changed, because the audit log cannot be written. Repair it, then try again",
                )

    def ended(self, asked: AnyOperation[Any], caller: Caller, outcome: object) -> None:
        """A change has ended, with its result or a failure; some items of many may have failed."""
        record = self._about(asked, caller, Result.SUCCESS)
        if isinstance(outcome, PenstockError):
            is_denial = isinstance(outcome, AccessDenied) or outcome.reason in _DENIALS
            result = Result.DENIED if is_denial else Result.FAILURE
            record = replace(record, result=result.value, **about_refusal(outcome))
        elif isinstance(outcome, BaseException):
            record = replace(record, result=Result.FAILURE.value, reason=type(outcome).__name__)
        elif isinstance(outcome, tuple) and any(isinstance(item, Reason) for item in outcome):
            reasons = {item.name.lower() for item in outcome if isinstance(item, Reason)}
            record = replace(record, result=Result.FAILURE.value, reason=" ".join(sorted(reasons)))
        self._write(record)

    # Writing.

    def next_deadline_ms(self) -> int | None:
        """When the next summary is due."""
        return self._limiter.next_ms()

    def tick(self, now_ms: int) -> None:
        """Write the summaries that are due."""
        for found in self._limiter.ended(now_ms):
            self._write(replace(found.record, time=self._broker.clock.now_ms(), count=found.left_out))

    @property
    def is_idle(self) -> bool:
        """Whether everything is written."""
        return all(writer.is_idle for writer in self._writers)

    def _denied(self, operation: str, caller: Caller, fields: dict[str, Any]) -> None:
        record = self._record(EventClass.API, Result.DENIED, operation=operation, **by_caller(caller), **fields)
        self._write_few((operation, caller.principal, record.resources), record)

    def _about(self, asked: AnyOperation[Any], caller: Caller, result: Result) -> AuditRecord:
        return self._record(
            EventClass.API, result, operation=type(asked).__name__, **by_caller(caller), **concerned(asked)
        )

    def _record(self, event: EventClass, result: Result, **fields: Any) -> AuditRecord:  # noqa: ANN401  of a record
        name, uid = event.value
        return AuditRecord(self._broker.clock.now_ms(), name, uid, result.value, int(self._broker.node_id), **fields)

    def _write_few(self, key: tuple[object, ...], record: AuditRecord, most: int = AUDIT_FIRST_MAX) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if self._limiter.admits(key, record, most, now_ms):
            self._write(record)
        next_ms = self._limiter.next_ms()
        if next_ms is not None:
            self._broker.wake_at(next_ms)

    def _write(self, record: AuditRecord) -> None:
        line = encode(record)
        for writer in self._writers:
            writer.add(line)


async def _last(writer: Writer, line: bytes) -> None:
    await _awaited(writer, line)


async def _awaited(writer: Writer, line: bytes) -> str | None:
    future: Future[str | None] = Future()
    writer.add(line, lambda problem: None if future.done() else future.set_result(problem))
    return await future


def _of_action(action: Action) -> str:
    return "Produce" if action is Action.WRITE else "Fetch"
