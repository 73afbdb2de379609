"""Failed logins slow down further attempts, within bounds, and lock nobody out."""

from penstock.core.security.failures import FailedLogins
from penstock.limits import LOGIN_DELAY_MS, LOGIN_DELAY_MS_MAX, LOGIN_FAILURE_FORGIVEN_MS, LOGIN_FAILURES_FREE


def fail(failures: FailedLogins, address: str, user: str, count: int, now_ms: int = 0) -> None:
    for _ in range(count):
        failures.failed(address, user, now_ms)


def test_the_first_failures_cost_nothing_and_then_the_delay_doubles_up_to_its_limit() -> None:
    failures = FailedLogins()
    fail(failures, "a", "anna", LOGIN_FAILURES_FREE - 1)
    assert failures.delay_ms("a", "anna", 0) == 0
    delays = []
    for _ in range(30):
        failures.failed("a", "anna", 0)
        delays.append(failures.delay_ms("a", "anna", 0))
    assert delays[:3] == [2 * LOGIN_DELAY_MS, 4 * LOGIN_DELAY_MS, 8 * LOGIN_DELAY_MS]
    assert delays[-1] == LOGIN_DELAY_MS_MAX


def test_an_address_is_slowed_down_whatever_user_it_names() -> None:
    failures = FailedLogins()
    for number in range(LOGIN_FAILURES_FREE):
        failures.failed("a", f"user-{number}", 0)
    assert failures.delay_ms("a", "fresh", 0) > 0
    assert failures.delay_ms("b", "fresh", 0) == 0


def test_a_user_is_slowed_down_from_all_addresses_but_those_where_it_has_logged_in() -> None:
    failures = FailedLogins()
    failures.succeeded("home", "anna")
    for number in range(LOGIN_FAILURES_FREE):
        failures.failed(f"address-{number}", "anna", 0)
    assert failures.delay_ms("new", "anna", 0) > 0
    assert failures.delay_ms("home", "anna", 0) == 0
    assert failures.delay_ms("new", "bert", 0) == 0


def test_failures_are_forgiven_with_time() -> None:
    failures = FailedLogins()
    fail(failures, "a", "anna", 100)
    assert failures.delay_ms("a", "anna", LOGIN_FAILURE_FORGIVEN_MS) < failures.delay_ms("a", "anna", 0) * 2
    assert failures.delay_ms("a", "anna", 100 * LOGIN_FAILURE_FORGIVEN_MS) == 0


def test_memory_is_bounded() -> None:
    failures = FailedLogins(kept_max=3)
    for number in range(10):
        failures.failed(f"a{number}", f"u{number}", 0)
        failures.succeeded(f"a{number}", f"u{number}")
    assert len(failures._by_client) == len(failures._by_user) == len(failures._welcome) == 3
