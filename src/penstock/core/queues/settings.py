"""What an operator may choose about queues. Policies are for records that bring none of their own (``envelope.py``)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The ``[queues]`` section of the configuration."""

    lease_ms_default: int = 2_000
    lease_ms_max: int = 12 * 60 * 60 * 1000
    in_flight_max: int = 10_000
    """Leased records of one queue, all its workers together."""
    worker_in_flight: int = 16
    """What a connected worker holds at a time that does not say: little enough to be done within a lease."""
    max_attempts: int = 0
    """Deliveries before a record goes to the dead letters; 0 for no limit."""
    backoff_ms: int = 0
    max_backoff_ms: int = 0
    """0 for no cap."""
    idempotency_ms: int = 600_000
    """How long a group remembers the idempotency key of an acked record."""
    reason_chars_max: int = 1024
    """Longer reasons of nacks are cut."""
