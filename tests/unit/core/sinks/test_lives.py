"""What a commit names lies in one life of the staging topic: offsets of an earlier one are nobody's."""

from uuid import UUID

import pytest

from penstock.errors import Reason
from tests.unit.core.sinks.world import IDLE_MS, TOPIC, World


@pytest.fixture
def world() -> World:
    return World()


def test_opening_tells_which_staging_topic_it_is(world) -> None:
    opened = world.open()
    assert opened.staging_id == world.staging().topic.topic_id
    assert world.open().staging_id == opened.staging_id
    world.restart()
    assert world.open().staging_id == opened.staging_id


def test_a_commit_that_names_the_staging_topic_of_now_is_taken(world) -> None:
    opened = world.open()
    staged = world.stage(b"1")
    assert world.committed(0, (TOPIC, 0, [staged]), staging_id=opened.staging_id).committed.records == 1


def test_a_driver_of_a_deleted_sink_does_not_commit_the_records_of_the_next(world) -> None:
    old = world.open()
    theirs = world.stage(b"old driver's")
    world.delete_sink()
    new = world.open()
    assert world.stage(b"new driver's") == theirs, "the offsets alone do not tell them apart"
    refused = world.committed(0, (TOPIC, 0, [theirs]), staging_id=old.staging_id).error
    assert refused.reason is Reason.OFFSET_OUT_OF_RANGE
    assert str(old.staging_id) in refused.text
    assert "stage the batch again" in refused.text
    assert world.values() == []
    assert world.committed(0, (TOPIC, 0, [theirs]), staging_id=new.staging_id).committed.records == 1
    assert world.values() == [b"new driver's"]


def test_a_driver_that_paused_until_its_staging_topic_went_stages_again(world) -> None:
    old = world.open()
    world.committed(0, (TOPIC, 0, [world.stage(b"0")]), staging_id=old.staging_id)
    late = world.stage(b"1")
    world.advance(60_000)
    world.advance(IDLE_MS)
    assert "it has none now" in world.committed(1, (TOPIC, 0, [late]), staging_id=old.staging_id).error.text
    new = world.open()
    assert new.last_batch_id == 0
    for other in (b"other", b"others"):
        world.stage(other)
    refused = world.committed(1, (TOPIC, 0, [late]), staging_id=old.staging_id)
    assert refused.error.reason is Reason.OFFSET_OUT_OF_RANGE
    assert world.values() == [b"0"]


def test_an_empty_batch_of_an_earlier_life_does_not_count(world) -> None:
    world.open()
    assert world.committed(9, staging_id=UUID(int=1)).error.reason is Reason.OFFSET_OUT_OF_RANGE
    assert world.open().last_batch_id is None


def test_a_batch_that_is_committed_is_told_so_whatever_life_it_names(world) -> None:
    opened = world.open()
    staged = world.stage(b"1")
    world.committed(0, (TOPIC, 0, [staged]), staging_id=opened.staging_id)
    assert world.committed(0, (TOPIC, 0, [staged]), staging_id=UUID(int=1)).committed.already
