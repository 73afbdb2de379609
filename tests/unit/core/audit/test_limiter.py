"""What repeats is written a few times, and then counted."""

from penstock.core.audit.limiter import PERIOD_MS, Limiter
from penstock.core.audit.record import AuditRecord


def record(operation: str = "Fetch") -> AuditRecord:
    return AuditRecord(0, "api_activity", 6003, "denied", 1, operation)


def test_the_first_few_are_written_and_the_others_are_counted() -> None:
    limiter = Limiter()
    assert [limiter.admits("a", record(), 3, 0) for _ in range(10)] == [True] * 3 + [False] * 7
    assert limiter.admits("b", record(), 3, 10)
    assert limiter.ended(PERIOD_MS - 1) == []
    [summary] = limiter.ended(PERIOD_MS)
    assert (summary.left_out, summary.record.operation) == (7, "Fetch")
    assert limiter.next_ms() == PERIOD_MS + 10
    assert limiter.ended(PERIOD_MS + 10) == []
    assert limiter.next_ms() is None


def test_a_new_minute_begins_anew() -> None:
    limiter = Limiter()
    assert limiter.admits("a", record(), 1, 0)
    assert not limiter.admits("a", record(), 1, PERIOD_MS - 1)
    limiter.ended(PERIOD_MS)
    assert limiter.admits("a", record(), 1, PERIOD_MS)


def test_too_many_different_events_count_as_one() -> None:
    limiter = Limiter(keys_max=10)
    written = sum(limiter.admits(number, record(), 5, 0) for number in range(1000))
    assert written == 10 + 5
    assert sum(summary.left_out for summary in limiter.ended(PERIOD_MS)) == 1000 - written
