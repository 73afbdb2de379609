"""How a redrive names dead letters, and wrong arguments."""

import msgspec

from penstock.client.queue_admin import Chosen
from penstock.gateways.http.v1.dead_letters import CHOSEN_MAX
from penstock.gateways.http.v1.models import RedriveRequest
from penstock.operations.dead_letters import Progress
from penstock.spark.pipelines.builtin.redrive import CHUNK, RedriveOutcome, _send_back, by_partition


def test_places_are_gathered_by_partition_in_their_order() -> None:
    chunk = [("dlq.t", 0, 3), ("dlq.t", 0, 7), ("dlq.t", 2, 1)]
    assert by_partition(chunk) == [Chosen(0, [3, 7]), Chosen(2, [1])]


def test_a_request_is_what_the_broker_reads() -> None:
    body = msgspec.json.encode({"chosen": by_partition([("dlq.t", 1, 5)]), "rate_per_second": 2.5})
    read = msgspec.json.decode(body, type=RedriveRequest)
    assert (read.chosen[0].partition, read.chosen[0].offsets, read.rate_per_second) == (1, [5], 2.5)


def test_a_piece_is_not_larger_than_the_broker_accepts() -> None:
    assert CHUNK <= CHOSEN_MAX


class Finished:
    """Answers a redrive as the broker does when another one finishes letters at the same time."""

    def __init__(self, **counts) -> None:
        self._counts = counts

    def redrive(self, *_, **__):
        yield Progress(**self._counts, done=True)


class Bar:
    def advance(self, *_) -> None:
        pass


def test_letters_that_another_finished_before_their_turn_count_as_skipped() -> None:
    outcome = RedriveOutcome("t", "dlq.t", planned=10)
    # Two were finished before the broker counted, three more before it came to them, of which it tells of one.
    admin = Finished(total=8, finished=4, skipped=1, failed=1)
    _send_back(admin, outcome, tuple(("dlq.t", 0, offset) for offset in range(10)), Bar(), 0.0)
    assert (outcome.redriven, outcome.failed, outcome.skipped) == (4, 1, 5)
