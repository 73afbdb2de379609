"""The settings of one log: sizes, ages, and what happens to old records. A change replaces all of them."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.limits import INDEX_INTERVAL_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

NO_LIMIT: Final = -1
DAY_MS: Final = 24 * 60 * 60 * 1000
LONG_MS_MAX: Final = 2**63 - 1


class CleanupPolicy(Enum):
    """What happens to old records; a log may have both."""

    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log, in Kafka's meaning; -1 means no limit where a limit is optional."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = INDEX_INTERVAL_BYTES_DEFAULT
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = NO_LIMIT
    cleanup: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MS_MAX
    file_delete_delay_ms: int = 60_000

    def __post_init__(self) -> None:
        assert SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX, self.segment_bytes
        assert self.index_interval_bytes >= 0
        assert 0.0 <= self.min_cleanable_dirty_ratio <= 1.0

    @property
    def deletes(self) -> bool:
        """Whether old segments go by age and size."""
        return CleanupPolicy.DELETE in self.cleanup

    @property
    def compacts(self) -> bool:
        """Whether only the last record of a key is kept."""
        return CleanupPolicy.COMPACT in self.cleanup
