"""What ``replay`` refuses before it asks anybody."""

import pytest

from penstock.spark.pipelines.builtin.replay import ReplayArguments, ReplaySource, _wanted
from penstock.spark.pipelines.errors import PipelineUsageError


@pytest.mark.parametrize("more", [{}, {"from_offset": 3}, {"from_time": "2026-01-01"}, {"source": ReplaySource.BOTH}])
def test_a_topic_is_not_sent_to_itself_without_an_end(more):
    with pytest.raises(PipelineUsageError, match=r"orders to itself without an end .*: write --to-offset or --to-time"):
        _wanted(ReplayArguments(topic="orders", to="orders", **more))
    assert _wanted(ReplayArguments(topic="orders", to="again", **more)).to == "again"


@pytest.mark.parametrize(
    "more", [{"to_offset": 3}, {"from_offset": 1, "to_time": "2026-01-01"}, {"source": ReplaySource.LAKE}]
)
def test_a_range_that_ends_and_what_a_lake_has_may_go_to_the_topic_itself(more):
    wanted = _wanted(ReplayArguments(topic="orders", to="orders", **more))
    assert (wanted.topic, wanted.to) == ("orders", "orders")
