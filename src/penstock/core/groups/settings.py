"""What an operator may choose about groups. The defaults are Kafka's, so clients tuned for Kafka behave the same here."""

from dataclasses import dataclass

from penstock.limits import GROUP_MEMBERS_MAX, GROUPS_MAX, OFFSET_METADATA_BYTES_MAX

_MINUTE_MS = 60 * 1000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """All times in milliseconds."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 30 * _MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    """How long an empty group waits for more members before its first generation; 0 starts at once (tests want that)."""
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """A new member cannot heartbeat while its join waits, so this bounds how long a vanished one is kept."""
    members_max: int = GROUP_MEMBERS_MAX
    groups_max: int = GROUPS_MAX
    offset_metadata_bytes_max: int = OFFSET_METADATA_BYTES_MAX
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    expiry_check_interval_ms: int = 10 * _MINUTE_MS
    offsets_topic_partitions: int = 16

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max
        assert self.initial_rebalance_delay_ms >= 0
        assert self.new_member_join_timeout_ms > 0
        assert 0 < self.members_max <= GROUP_MEMBERS_MAX
        assert 0 < self.groups_max <= GROUPS_MAX
        assert self.offsets_retention_ms > 0
        assert self.expiry_check_interval_ms > 0
        assert self.offsets_topic_partitions > 0
