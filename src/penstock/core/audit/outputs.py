"""The two outputs of the audit log: a file, and the topic ``__audit``, which is replicated as any other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.audit.writer import Written
from penstock.core.publish import NewRecord, Results
from penstock.core.security.access import INTERNAL
from penstock.core.topics.names import AUDIT_TOPIC
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.ports import LineFile
from penstock.types import Acks

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_DAY_MS: Final = 24 * 3_600_000


class FileOutput:
    """A file of lines, written outside the event loop."""

    name = "file"

    def __init__(self, broker: "Broker", file: LineFile) -> None:
        self._broker = broker
        self._file = file

    def write(self, lines: Sequence[bytes], done: Written) -> None:
        """Append the lines."""
        task = _Append(self._file, b"".join(line + b"\n" for line in lines))
        self._broker.off_loop(task.run, lambda: done(task.problem))


class _Append:
    """The blocking part."""

    def __init__(self, file: LineFile, data: bytes) -> None:
        self._file = file
        self._data = data
        self.problem: str | None = None

    def run(self) -> None:
        """On a thread."""
        try:
            self._file.append(self._data)
        except OSError as error:
            self.problem = error.strerror or str(error)


class TopicOutput:
    """The topic, which is created when the first record is written."""

    name = "topic"

    def __init__(self, broker: "Broker", retention_days: int) -> None:
        self._broker = broker
        self._configs: Final = {
            "retention.ms": str(retention_days * _DAY_MS),
            "segment.bytes": str(100 * MIB),
            "compression.type": "producer",
        }

    def write(self, lines: Sequence[bytes], done: Written) -> None:
        """Publish the lines, synced on every in-sync replica."""
        if AUDIT_TOPIC in self._broker.topics:
            self._publish(lines, done)
        else:
            self._broker.background(self._create_and_publish(lines, done))

    async def _create_and_publish(self, lines: Sequence[bytes], done: Written) -> None:
        try:
            await self._broker.topics.create(
                NewTopic(AUDIT_TOPIC, 1, configs=self._configs), exist_ok=True, internal=True
            )
        except PenstockError as error:
            done(error.text)
            return
        self._publish(lines, done)

    def _publish(self, lines: Sequence[bytes], done: Written) -> None:
        records = [NewRecord(None, line, partition=0) for line in lines]
        try:
            self._broker.publisher.publish(INTERNAL, AUDIT_TOPIC, records, Acks.ALL, _first_problem(done), counts=False)
        except PenstockError as error:
            done(error.text)


def _first_problem(done: Written) -> Callable[[Results], None]:
    def published(results: Results) -> None:
        done(next((result.text for result in results if isinstance(result, PenstockError)), None))

    return published
