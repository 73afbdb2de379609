"""Fetch sessions: epochs in order, what is forgotten stays forgotten, and the cache never grows past its bound."""

from uuid import UUID

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.fetch_session import FetchSessions
from penstock.limits import FETCH_SESSION_IDLE_MS_MIN
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponsePartition,
)

ANNA, BERT = "User:anna", "User:bert"


class Counting:
    """Ids in a row, so that a test can name them."""

    def __init__(self) -> None:
        self.last = 0

    def uuid(self) -> UUID:
        self.last += 1
        return UUID(int=self.last)

    def secret(self, count: int) -> bytes:
        return bytes(count)


def request(
    session_id: int, epoch: int, offsets: dict[int, int] | None = None, forget: list[int] | None = None
) -> FetchRequest:
    partitions = [
        FetchRequestPartition(partition=index, fetch_offset=offset) for index, offset in (offsets or {}).items()
    ]
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequestTopic(topic="t", partitions=partitions)] if partitions else [],
        forgotten_topics_data=[FetchRequestForgottenTopic(topic="t", partitions=forget)] if forget else [],
    )


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(Counting(), sessions_max=2)


def test_without_a_session_nothing_is_remembered(sessions: FetchSessions) -> None:
    session = sessions.open(request(0, -1, {0: 5}), ANNA, by_id=False, now_ms=0)
    assert session.session_id == 0
    assert len(sessions) == 0


def test_an_incremental_request_changes_only_what_it_names(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5, 1: 6}), ANNA, by_id=False, now_ms=0)
    again = sessions.open(request(made.session_id, 1, {1: 9}), ANNA, by_id=False, now_ms=1)
    assert {key[1]: wanted.offset for key, wanted in again.wanted.items()} == {0: 5, 1: 9}


def test_forgotten_partitions_are_gone(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5, 1: 6}), ANNA, by_id=False, now_ms=0)
    again = sessions.open(request(made.session_id, 1, forget=[0]), ANNA, by_id=False, now_ms=1)
    assert [key[1] for key in again.wanted] == [1]


def test_an_epoch_out_of_order_is_refused(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    with pytest.raises(PenstockError) as refused:
        sessions.open(request(made.session_id, 2), ANNA, by_id=False, now_ms=1)
    assert refused.value.reason is Reason.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_session_is_refused(sessions: FetchSessions) -> None:
    with pytest.raises(PenstockError) as refused:
        sessions.open(request(77, 1), ANNA, by_id=False, now_ms=1)
    assert refused.value.reason is Reason.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix_in_a_session(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    with pytest.raises(PenstockError) as refused:
        sessions.open(request(made.session_id, 1), ANNA, by_id=True, now_ms=1)
    assert refused.value.reason is Reason.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_the_session(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    sessions.open(request(made.session_id, -1, {0: 5}), ANNA, by_id=False, now_ms=1)
    assert len(sessions) == 0


def test_the_session_of_another_principal_is_unknown_and_stays_as_it_is(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    for epoch in (1, 2):
        with pytest.raises(PenstockError) as refused:
            sessions.open(request(made.session_id, epoch), BERT, by_id=False, now_ms=1)
        assert refused.value.reason is Reason.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (-1, 0):
        assert not sessions.open(request(made.session_id, epoch), BERT, by_id=False, now_ms=1).wanted
    assert sessions.open(request(made.session_id, 1), ANNA, by_id=False, now_ms=1) is made


def test_the_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    made.epoch = 0x7FFFFFFF
    assert sessions.open(request(made.session_id, 0x7FFFFFFF), ANNA, by_id=False, now_ms=1).epoch == 1


def test_a_full_cache_gives_no_session_but_still_answers(sessions: FetchSessions) -> None:
    for _ in range(2):
        sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    third = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=1)
    assert third.session_id == 0
    assert len(third.wanted) == 1


def test_an_idle_session_makes_room(sessions: FetchSessions) -> None:
    oldest = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=1)
    third = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=FETCH_SESSION_IDLE_MS_MIN)
    assert third.session_id != 0
    with pytest.raises(PenstockError):
        sessions.open(request(oldest.session_id, 1), ANNA, by_id=False, now_ms=FETCH_SESSION_IDLE_MS_MIN)


def test_only_news_is_told_twice(sessions: FetchSessions) -> None:
    wanted = next(iter(sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0).wanted.values()))
    quiet = FetchResponsePartition(high_watermark=5, log_start_offset=0, records=b"")
    assert wanted.has_changed(quiet)
    assert not wanted.has_changed(quiet)
    assert wanted.has_changed(FetchResponsePartition(high_watermark=6, log_start_offset=0, records=b""))
    assert wanted.has_changed(FetchResponsePartition(high_watermark=6, log_start_offset=2, records=b""))
    assert wanted.has_changed(FetchResponsePartition(high_watermark=6, log_start_offset=2, records=b"x"))


def test_an_error_is_told_again_and_so_is_its_end(sessions: FetchSessions) -> None:
    wanted = next(iter(sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0).wanted.values()))
    quiet = FetchResponsePartition(high_watermark=5, log_start_offset=0, records=b"")
    wanted.has_changed(quiet)
    failed = FetchResponsePartition(error_code=3, high_watermark=-1)
    assert wanted.has_changed(failed)
    assert wanted.has_changed(failed)
    assert wanted.has_changed(quiet)


def test_partitions_that_were_served_go_to_the_back(sessions: FetchSessions) -> None:
    session = sessions.open(request(0, 0, {0: 5, 1: 5, 2: 5}), ANNA, by_id=False, now_ms=0)
    session.move_back([session.wanted["t", 0]])
    assert [key[1] for key in session.wanted] == [1, 2, 0]


def test_the_partitions_of_all_sessions_together_are_bounded() -> None:
    sessions = FetchSessions(Counting(), partitions_max=5)
    first = sessions.open(request(0, 0, {0: 5, 1: 5, 2: 5}), ANNA, by_id=False, now_ms=0)
    assert first.session_id != 0
    too_many = sessions.open(request(0, 0, {0: 5, 1: 5, 2: 5}), ANNA, by_id=False, now_ms=0)
    assert (too_many.session_id, len(too_many.wanted)) == (0, 3)
    second = sessions.open(request(0, 0, {0: 5, 1: 5}), ANNA, by_id=False, now_ms=0)
    assert second.session_id != 0
    with pytest.raises(PenstockError):
        sessions.open(request(second.session_id, 1, {2: 5}), ANNA, by_id=False, now_ms=0)
    assert len(second.wanted) == 2
    # What a session knows takes no more room, however often it is named.
    sessions.open(request(first.session_id, 1, {0: 6, 1: 6, 2: 6}), ANNA, by_id=False, now_ms=0)
    # Room comes from what is forgotten, and from sessions that end.
    sessions.open(request(first.session_id, 2, forget=[0, 1]), ANNA, by_id=False, now_ms=0)
    sessions.open(request(second.session_id, 1, {2: 5, 3: 5}), ANNA, by_id=False, now_ms=0)
    sessions.open(request(second.session_id, -1), ANNA, by_id=False, now_ms=0)
    assert sessions.open(request(0, 0, {0: 5, 1: 5, 2: 5, 3: 5}), ANNA, by_id=False, now_ms=0).session_id != 0


def test_a_name_that_can_be_no_topic_s_is_not_remembered(sessions: FetchSessions) -> None:
    asked = request(0, 0, {0: 5})
    asked.topics[0].topic = "x" * 250
    assert sessions.open(asked, ANNA, by_id=False, now_ms=0).session_id == 0
    made = sessions.open(request(0, 0, {0: 5}), ANNA, by_id=False, now_ms=0)
    asked.session_id, asked.session_epoch = made.session_id, 1
    with pytest.raises(PenstockError):
        sessions.open(asked, ANNA, by_id=False, now_ms=0)
