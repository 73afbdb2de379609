"""Rates and buckets, with the numbers of Kafka's own tests where it has some."""

import pytest

from penstock.core.quotas.rates import BURST_SECONDS, KEPT_MS, WINDOWS, Rate, TokenBucket


def test_a_spike_is_delayed_as_by_kafka() -> None:
    """ClientQuotaManagerTest.testQuotaViolation: 6300 bytes in 10.5 seconds at 500 bytes per second."""
    rate, now_ms = Rate(500), 0
    for _ in range(10):
        assert rate.record(400, now_ms) == 0
        now_ms += 1000
    now_ms += 500
    assert rate.record(2300, now_ms) == 2100
    delays = []
    for _ in range(11):
        now_ms += 1000
        delays.append(rate.record(400, now_ms))
    assert delays[0] > 0
    assert delays[-1] == 0


def test_a_request_that_takes_long_is_delayed_as_by_kafka() -> None:
    """ClientRequestQuotaManagerTest: 107.1 ms in 10.5 seconds at one percent."""
    rate, now_ms = Rate(1), 0
    for _ in range(10):
        assert rate.record(0.4, now_ms) == 0
        now_ms += 1000
    assert rate.record(6.71, now_ms + 500) == 210


def test_a_new_client_may_use_ten_seconds_of_its_quota_at_once() -> None:
    rate = Rate(100)
    assert rate.burst() == 1000
    assert rate.record(1000, 5_000) == 0
    assert rate.record(1, 5_000) > 0


def test_a_delay_counts_down_however_large_the_amount_was() -> None:
    rate = Rate(100)
    assert rate.record(6000, 0) == 50_000
    assert rate.delay_ms(20_000) == 30_000
    assert not rate.is_idle(20_000)
    assert rate.delay_ms(50_000) == 0
    assert rate.is_idle(50_000)


def test_small_amounts_do_not_shorten_a_delay() -> None:
    rate = Rate(100)
    rate.record(6000, 0)
    rate.record(1, 40_000)
    assert rate.delay_ms(40_000) == 10_000


@pytest.mark.parametrize("amount", [70, 700, 7000, 70_000])
def test_no_more_than_the_quota_passes_in_the_long_run(amount: int) -> None:
    """A client that always waits as long as it is told. Windows of a second are coarse: as with Kafka, bursts can add some percent."""
    rate, now_ms, passed = Rate(1000), 0, 0
    while now_ms < 600_000:
        now_ms += rate.record(amount, now_ms) + 1
        passed += amount
    assert 0.9 * now_ms < passed < 1.5 * now_ms


def test_what_does_not_fit_is_not_counted() -> None:
    rate = Rate(100)
    assert rate.record_within(900, 0) == 0
    assert rate.record_within(500, 0) == 4000
    assert rate.record_within(100, 0) == 0


def test_what_never_fits_passes_when_nothing_else_counts() -> None:
    rate = Rate(100)
    assert rate.record_within(5000, 0) == 0
    assert rate.record_within(1, 0) > 0
    assert rate.record_within(1, KEPT_MS) == 40_000 - KEPT_MS
    assert rate.record_within(1, 40_000) == 0


def test_old_amounts_are_forgotten() -> None:
    rate = Rate(10)
    rate.record(0.1, 0)
    rate.record(0.2, 1000)
    assert not rate.is_idle(KEPT_MS + 999)
    assert rate.is_idle(KEPT_MS + 1000)
    assert rate.record(BURST_SECONDS * 10, KEPT_MS + 1000) == 0


def test_a_lower_limit_applies_to_what_was_used_before() -> None:
    rate = Rate(1000)
    assert rate.record(5000, 0) == 0
    rate.set_limit(100, 0)
    assert rate.delay_ms(0) == 40_000


def test_a_full_bucket_has_eleven_seconds_of_tokens_and_more_are_owed() -> None:
    bucket = TokenBucket(2)
    assert bucket.is_idle(10**6)
    assert bucket.record(2 * WINDOWS, 10**6) == 0
    assert bucket.record(1, 10**6) == 500
    assert bucket.delay_ms(10**6 + 499) == 1
    assert bucket.delay_ms(10**6 + 500) == 0
    assert not bucket.is_idle(10**6 + 500)
    assert bucket.is_idle(10**6 + 500 + WINDOWS * 1000)


@pytest.mark.parametrize("given_back", [5, 500])
def test_tokens_that_are_given_back_do_not_overflow(given_back: int) -> None:
    bucket = TokenBucket(1)
    bucket.record(5, 1000)
    bucket.record(-given_back, 1000)
    assert bucket.is_idle(1000)
    assert bucket.record(WINDOWS, 1000) == 0
    assert bucket.record(1, 1000) == 1000
