"""What ``replay`` refuses before it asks anybody."""

import pytest

from penstock.spark.lake import replaying
from penstock.spark.pipelines.builtin import replay
from penstock.spark.pipelines.builtin.replay import ReplayArguments, ReplaySource, _wanted
from penstock.spark.pipelines.errors import PipelineUsageError


@pytest.mark.parametrize("more", [{}, {"from_offset": 3}, {"from_time": "2026-01-01"}, {"source": ReplaySource.BOTH}])
def test_a_topic_is_not_sent_to_itself_without_an_end(more) -> None:
    with pytest.raises(
        PipelineUsageError, match=r"orders to itself without an end .*: specify --to-offset or --to-time"
    ):
        _wanted(ReplayArguments(topic="orders", to="orders", **more))
    assert _wanted(ReplayArguments(topic="orders", to="again", **more)).to == "again"


@pytest.mark.parametrize(
    "more", [{"to_offset": 3}, {"from_offset": 1, "to_time": "2026-01-01"}, {"source": ReplaySource.LAKE}]
)
def test_a_range_that_ends_and_what_a_lake_has_may_go_to_the_topic_itself(more) -> None:
    wanted = _wanted(ReplayArguments(topic="orders", to="orders", **more))
    assert (wanted.topic, wanted.to) == ("orders", "orders")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"from_time": "earliest"}, '--from-time: "earliest" is not a time such as "2026-03-01T12:00:00Z", or a date such as "2026-03-01"'),
        ({"to_time": "12:00"}, '--to-time: "12:00" is not a time such as "2026-03-01T12:00:00Z", or a date such as "2026-03-01"'),
        ({"from_offset": 15, "to_offset": 5}, "--to-offset: The range ends before it starts; --from-offset must not be after --to-offset"),
        ({"from_time": "2026-03-02", "to_time": "2026-03-01"}, "--to-time: The range ends before it starts; --from-time must not be after --to-time"),
        ({"from_offset": -1}, "--from-offset: -1 is too small; specify 0 or more"),
        ({"rate": 0}, "--rate: 0 is too small; specify 1 or more"),
    ],
)  # fmt: skip
def test_invalid_arguments_name_the_option(more, text) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        _wanted(ReplayArguments(topic="orders", to="again", **more))
    assert str(caught.value) == text


class Context:
    """Keeps what a replay says."""

    brokers, checkpoint = {"kafka.bootstrap.servers": "h:1"}, "there"

    def __init__(self) -> None:
        self.notes, self.rows = [], []

    def note(self, text) -> None:
        self.notes.append(text)

    def emit(self, rows, columns, *, nothing="") -> None:
        assert all(set(columns) <= set(row) for row in rows)
        self.rows += rows


@pytest.mark.parametrize(
    ("offsets", "last"), [(10, "replayed 10 offsets of orders to again"), (0, "there are no records in this range")]
)
def test_the_result_is_printed_for_people_and_programs(offsets, last, monkeypatch) -> None:
    arguments, context = ReplayArguments(topic="orders", to="again"), Context()
    phase = replaying.Phase("broker", {0: 0}, {0: offsets})
    begun = replaying.Replay(_wanted(arguments), "run", "there", "", "parquet", True, [phase])
    done = []
    monkeypatch.setattr(replaying, "begin", lambda *_: begun)
    monkeypatch.setattr(replaying, "finish", done.append)
    monkeypatch.setattr(replay, "_send", lambda *_: None)
    replay.run(arguments, context)
    assert done == [begun]
    assert context.notes[-1] == last
    assert context.rows == [{"topic": "orders", "to": "again", "offsets": offsets}]
