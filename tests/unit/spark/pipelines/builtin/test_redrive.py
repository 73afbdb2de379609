"""How a redrive names what it sends back, and what it is told by mistake."""

import msgspec

from penstock.client.queue_admin import Chosen
from penstock.gateways.http.v1_dlq import CHOSEN_MAX
from penstock.gateways.http.v1_models import RedriveRequest
from penstock.spark.pipelines.builtin.redrive import CHUNK, by_partition


def test_places_are_gathered_by_partition_in_their_order():
    chunk = [("dlq.t", 0, 3), ("dlq.t", 0, 7), ("dlq.t", 2, 1)]
    assert by_partition(chunk) == [Chosen(0, [3, 7]), Chosen(2, [1])]


def test_a_request_is_what_the_broker_reads():
    body = msgspec.json.encode({"chosen": by_partition([("dlq.t", 1, 5)]), "rate_per_second": 2.5})
    read = msgspec.json.decode(body, type=RedriveRequest)
    assert (read.chosen[0].partition, read.chosen[0].offsets, read.rate_per_second) == (1, [5], 2.5)


def test_a_piece_is_no_larger_than_the_broker_takes():
    assert CHUNK <= CHOSEN_MAX
