"""A callback of the core becomes something to wait for, and a mistake in one answer stays in that answer."""

from collections.abc import Callable

import pytest

from penstock.gateways.kafka.answers import answer_later


async def test_what_the_core_tells_is_translated_whenever_it_comes() -> None:
    told: list[Callable[[int], None]] = []
    at_once = answer_later(lambda done: done(20), str)
    later = answer_later(told.append, str)
    assert await at_once == "20"
    assert not later.done()
    told[0](21)
    assert await later == "21"


async def test_a_client_that_went_away_is_no_trouble_for_the_core() -> None:
    told: list[Callable[[int], None]] = []
    later = answer_later(told.append, str)
    later.cancel()
    told[0](21)
    assert later.cancelled()


async def test_a_mistake_in_the_translation_does_not_reach_the_core() -> None:
    told: list[Callable[[int], None]] = []
    later = answer_later(told.append, lambda number: number // 0)
    told[0](21)
    with pytest.raises(ZeroDivisionError):
        await later
