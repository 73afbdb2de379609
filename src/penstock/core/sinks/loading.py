"""From records back to sinks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.runtime import Shard
from penstock.core.sinks.stored import StoredSink, decode
from penstock.errors import Reason
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.core.sinks.sinks import Sinks


class SinksShard(Shard):
    """All sinks: they have one partition. The last record of a sink is all that is known of it."""

    def __init__(self, sinks: "Sinks") -> None:
        self._sinks = sinks
        self.found: Final[dict[str, StoredSink]] = {}
        self.unreadable = 0
        """Records of a later version."""

    def replay(self, key: Buffer, value: Buffer | None, _: int) -> None:
        if value is None:
            self.found.pop(bytes(key).decode("utf-8", "replace"), None)
        elif (read := decode(key, value)) is None:
            self.unreadable += 1
        else:
            self.found[read[0]] = read[1]

    def loaded(self) -> Iterator[int]:
        self._sinks.restore(self)
        return iter(())

    def unloaded(self, reason: Reason) -> None:
        self._sinks.resign(reason)
