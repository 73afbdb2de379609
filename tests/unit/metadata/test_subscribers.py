"""Who is told of changes."""

import pytest

from penstock.metadata.port import Event
from penstock.metadata.subscribers import Subscribers


def test_one_that_fails_costs_the_others_nothing_and_is_heard_of() -> None:
    subscribers, told = Subscribers(), []

    def fail(_events: list[Event]) -> None:
        raise RuntimeError("a mistake")

    subscribers.add("a/", fail)
    subscribers.add("a/", told.extend)
    change = Event("a/1", 7, None)
    with pytest.raises(RuntimeError, match="a mistake"):
        subscribers.deliver([change])
    assert told == [change]
