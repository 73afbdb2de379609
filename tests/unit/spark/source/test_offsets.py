"""What is asked again before it is believed."""

import pytest

from penstock.spark.options import Options
from penstock.spark.source.offsets import Edges
from penstock.spark.source.settings import stream_settings

PLACE = ("t", 0)


class Saying(Edges):
    """Edges of a broker that gives these ends, one after the other."""

    def __init__(self, *ends, **options):
        given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "0", **options}
        super().__init__(None, stream_settings(Options(given)))
        self.ends = list(ends)

    def latest(self, partitions):
        return {PLACE: self.ends.pop(0)}


@pytest.mark.parametrize(
    ("ends", "options", "found", "left"),
    [
        ([12, 13], {}, 12, [13]),
        ([10], {}, 10, []),
        # A broker that knows late has gone back for a moment.
        ([5, 12, 13], {}, 12, [13]),
        # A topic that was made anew stays so: three times by default.
        ([5, 5, 6, 7], {}, 6, [7]),
        ([5, 12], {"fetchOffset.numRetries": "1"}, 5, [12]),
    ],
)
def test_an_end_that_went_back_is_asked_for_again(ends, options, found, left):
    edges = Saying(*ends, **options)
    assert edges.latest_not_before([PLACE], {PLACE: 10}) == {PLACE: found}
    assert edges.ends == left
