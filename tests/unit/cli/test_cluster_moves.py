"""Moves and elections on request: what is said of what was refused, and what a dry run foretells."""

from functools import partial

import msgspec
import pytest

from penstock.cli.cluster_moves import fail_on, forecast, require_etcd
from penstock.cli.failures import Failure
from penstock.client import PartitionInfo
from penstock.client.errors import BrokerRefused
from penstock.operations.cluster import ClusterDescription
from tests.unit.cli.test_cluster_view import FINE

REFUSED, OTHER = 39, 84


def test_the_same_refusal_of_many_partitions_is_told_once(capsys) -> None:
    done = {("t", n): BrokerRefused(REFUSED, f"t/{n}", f"etcd cannot be reached for {n} s") for n in range(12)}
    done["u", 0] = BrokerRefused(OTHER, "u/0", "Something else.")
    done["u", 1] = None
    with pytest.raises(Failure) as raised:
        fail_on(done)
    said = capsys.readouterr().err
    assert said.startswith("error: 12 partitions (t/0, t/1, t/2 and 9 more): etcd cannot be reached for 0 s (")
    assert len(said.splitlines()) == 1
    assert str(raised.value).startswith("u/0: Something else (")


def test_sentences_that_differ_in_the_name_of_their_partition_alone_are_told_once() -> None:
    done = {("t", n): BrokerRefused(REFUSED, f"t/{n}", f"Node 1 cannot lead t/{n}: it is not up.") for n in range(2)}
    with pytest.raises(Failure, match=r"2 partitions \(t/0, t/1\), for the first: Node 1 cannot lead t/0"):
        fail_on(done)
    fail_on({("t", 0): None})


@pytest.mark.parametrize(
    ("leader", "in_sync", "draining", "unclean", "result"),
    [
        (1, (1, 2), (), False, "not needed"),
        (2, (1, 2), (), False, "planned"),
        (2, (2,), (), False, "refused"),
        (2, (1, 2), (1,), False, "refused"),
        (2, (2,), (), True, "not needed"),
        (-1, (3,), (), True, "planned"),
    ],
)
def test_a_dry_run_foretells_what_an_election_comes_to(leader, in_sync, draining, unclean, result) -> None:
    now = PartitionInfo(0, leader, 0, (1, 2, 3), in_sync)
    ask = partial(forecast, now, draining=draining, unclean=unclean)
    assert ask(up={1, 2}) == result
    if leader < 0:
        assert ask(up={9}) == "refused"


def test_without_etcd_that_is_said_before_anything_that_may_be_old() -> None:
    require_etcd(msgspec.convert(FINE, ClusterDescription), "Nothing was moved")
    away = {**FINE, "metadata": {"is_reachable": False, "error": "etcd (h:1) cannot be reached for 9 s."}}
    with pytest.raises(
        Failure, match=r"^etcd \(h:1\) cannot be reached for 9 s\. Without etcd .*\. Nothing was moved\.$"
    ):
        require_etcd(msgspec.convert(away, ClusterDescription), "Nothing was moved")
