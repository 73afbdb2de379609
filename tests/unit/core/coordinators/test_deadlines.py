"""Timers fire once, at their deadline, however they were moved before."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.coordinators.deadlines import Deadlines, Timer


def test_a_timer_fires_at_its_deadline_and_only_once() -> None:
    fired: list[int] = []
    deadlines = Deadlines()
    timer = Timer(lambda: fired.append(1))
    deadlines.set(timer, 100)
    deadlines.expire(99)
    assert fired == []
    deadlines.expire(100)
    deadlines.expire(1_000)
    assert fired == [1]
    assert deadlines.next_ms() is None


def test_a_timer_moved_later_does_not_fire_early_and_moved_earlier_does_not_fire_late() -> None:
    fired: list[str] = []
    deadlines = Deadlines()
    later, earlier = Timer(lambda: fired.append("later")), Timer(lambda: fired.append("earlier"))
    deadlines.set(later, 100)
    deadlines.set(later, 200)
    deadlines.set(earlier, 300)
    deadlines.set(earlier, 50)
    assert deadlines.next_ms() == 50
    deadlines.expire(150)
    assert fired == ["earlier"]
    deadlines.expire(200)
    assert fired == ["earlier", "later"]


def test_a_cancelled_timer_never_fires_and_leaves_no_deadline() -> None:
    deadlines = Deadlines()
    timer = Timer(lambda: (_ for _ in ()).throw(AssertionError))
    deadlines.set(timer, 10)
    deadlines.cancel(timer)
    deadlines.cancel(timer)
    assert deadlines.next_ms() is None
    deadlines.expire(100)


def test_timers_that_come_and_go_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for at in range(10_000):
        timer = Timer()
        deadlines.set(timer, 1_000_000 + at)
        deadlines.cancel(timer)
    assert len(deadlines._heap) < 200


def test_a_timer_that_fires_may_cancel_all_the_others() -> None:
    fired: list[int] = []
    deadlines = Deadlines()
    timers = [Timer(lambda: fired.append(1)) for _ in range(500)]

    def cancel_all() -> None:
        for timer in timers:
            deadlines.cancel(timer)

    deadlines.set(Timer(cancel_all), 1)
    for timer in timers:
        deadlines.set(timer, 2)
    deadlines.expire(5)
    assert fired == []
    assert deadlines.next_ms() is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "cancel", "expire"]), st.integers(0, 4), st.integers(0, 50)),
        max_size=60,
    )
)
def test_timers_do_what_a_dictionary_of_deadlines_would(steps) -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    timers = [Timer(lambda index=index: fired.append(index)) for index in range(5)]
    model: dict[int, int] = {}
    now = 0
    for action, index, amount in steps:
        if action == "set":
            deadlines.set(timers[index], now + amount)
            model[index] = now + amount
        elif action == "cancel":
            deadlines.cancel(timers[index])
            model.pop(index, None)
        else:
            now += amount
            fired.clear()
            deadlines.expire(now)
            due = {key for key, at in model.items() if at <= now}
            assert sorted(fired) == sorted(due)
            model = {key: at for key, at in model.items() if at > now}
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not model)
        assert next_ms is None or next_ms <= min(model.values())
