"""How fast partitions that move may be copied."""

from penstock.core.cluster.throttle import ByteBudget


def test_a_second_s_worth_may_go_at_once_and_no_more() -> None:
    budget = ByteBudget(1000)
    assert budget.left(5) == 1000
    budget.take(1000)
    assert budget.left(5) == 0
    assert budget.left(105) == 100
    assert budget.left(60_000) == 1000, "what was not used is not saved up"


def test_the_end_of_a_batch_is_paid_back() -> None:
    budget = ByteBudget(1000)
    budget.take(3000)
    assert budget.left(0) == 0
    assert budget.left(2000) == 0
    assert budget.left(2500) == 500


def test_over_a_long_time_it_is_the_rate() -> None:
    budget = ByteBudget(10_000)
    sent = 0
    for now_ms in range(0, 60_000, 7):
        if budget.left(now_ms) > 0:
            budget.take(4096)
            sent += 4096
    assert 59 * 10_000 <= sent <= 62 * 10_000


def test_a_rate_that_changes_holds_at_once() -> None:
    budget = ByteBudget(1000)
    assert budget.left(0) == 1000
    budget.bytes_per_second = 10
    assert budget.left(0) == 10
    budget.take(30)
    assert budget.left(0) == 0
    wait_ms = budget.empty_ms()
    assert budget.left(wait_ms - 2) == 0
    assert budget.left(wait_ms) == 1
    budget.bytes_per_second = 5000
    assert budget.left(wait_ms + 1000) == 5000
