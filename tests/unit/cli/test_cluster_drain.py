"""Emptying a node: what is looked at first, how a watch ends, and what undoing it means."""

from collections.abc import Sequence

import msgspec
import pytest

from penstock.cli.cluster_drain import drain, undo
from penstock.cli.failures import Exit, Failure
from penstock.cli.output import Format
from penstock.operations.cluster import ClusterDescription, NodeDrain
from tests.unit.cli.test_cluster_view import FINE, NODE

DRAIN = {"node": 2, "leads": 0, "replicas": 3, "stuck": 0, "is_done": False}


class ScriptedCluster:
    """A cluster that answers with these statuses one after the other, the last for good, and notes what it is asked to do."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self._answers = [msgspec.convert({**FINE, **each}, ClusterDescription) for each in answers]
        self.asked: list[str] = []

    def cluster(self) -> ClusterDescription:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def drain(self, node: int) -> NodeDrain:
        self.asked.append(f"drain {node}")
        return NodeDrain(node, 0, 3, 0, False)

    def undrain(self, node: int) -> None:
        self.asked.append(f"undrain {node}")


def nodes(*, numbers: Sequence[int] = (1, 2, 3), **changes: object) -> dict[str, object]:
    """Three nodes; the changes are of node 2."""
    return {"nodes": [{**NODE, "node": each, **(changes if each == 2 else {})} for each in numbers]}


def run(
    client: ScriptedCluster, *, yes: bool = True, dry_run: bool = False, partial: bool = False, watch: bool = False
) -> None:
    drain(client, 2, Format.TABLE, yes=yes, dry_run=dry_run, partial=partial, watch=watch)  # type: ignore[arg-type]


def failure(client: ScriptedCluster, **how: bool) -> str:
    with pytest.raises(Failure) as raised:
        run(client, **how)
    assert raised.value.code is Exit.FAILED
    return str(raised.value)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (nodes(stuck=1), "1 of its 3 partitions has a replica on every other node"),
        (nodes(numbers=(2,)), "there is no other node"),
        (nodes(is_up=False, only_there=1), "1 of its partitions waits for it, since no other node has all its records"),
    ],
)
def test_a_dry_run_ends_as_the_run_would_and_neither_begins_what_cannot_end(state, why) -> None:
    client = ScriptedCluster(state)
    said = failure(client)
    assert why in said
    assert failure(client, dry_run=True) == said
    assert client.asked == []


def test_a_dry_run_of_what_can_be_done_shows_who_takes_it(capsys) -> None:
    client = ScriptedCluster(nodes(stuck=1))
    run(client, dry_run=True, partial=True)
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].split() == ["2", "2", "3", "1", "1,3"]
    assert "Nothing was moved; run it without --dry-run to do it" in said.err
    assert client.asked == []


def test_what_a_dead_node_alone_has_needs_a_decision_and_the_rest_moves_with_partial() -> None:
    client = ScriptedCluster(nodes(is_up=False, only_there=1))
    said = failure(client)
    for way in ("Start it again", "--partial", "--unclean", "penstock topic rm TOPIC"):
        assert way in said
    run(client, partial=True)
    assert client.asked == ["drain 2"]


def test_a_watch_ends_when_what_is_left_waits_for_a_dead_node(capsys) -> None:
    gone = nodes(is_up=False, only_there=1, is_draining=True)
    ways = [{**DRAIN, "replicas": left, "only_there": 1} for left in (2, 1)]
    client = ScriptedCluster(gone, *({**gone, "drains": [way]} for way in ways))
    said = failure(client, watch=True)
    assert "cannot be drained further: 1 of its partitions waits for it" in said
    assert "--unclean" in said
    assert "every other node" not in said
    assert "Node 2 is down and being drained: 1 partition left; 1 of its partitions waits" in capsys.readouterr().err


def test_without_etcd_nothing_is_told_of_what_may_be_old() -> None:
    away = {**nodes(stuck=3), "metadata": {"is_reachable": False, "error": "it did not answer within 2 s"}}
    said = failure(ScriptedCluster(away))
    assert said.startswith("etcd did not answer within 2 s. Without etcd nothing can be changed")
    assert "replica" not in said
    with pytest.raises(Failure, match="Nothing was changed"):
        undo(ScriptedCluster(away), 2, Format.TABLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"is_draining": True},
            "Node 2 is used again. Internal topics that lack replicas get them there automatically",
        ),
        ({"is_draining": True, "is_up": False, "replicas": 0}, "Node 2 is forgotten"),
        ({"is_draining": True, "is_up": False, "replicas": 1}, "it is down, and still has 1 partition\n"),
        ({}, "Node 2 is not being drained; nothing was changed"),
    ],
)
def test_undoing_says_what_becomes_of_the_node(capsys, changes, said) -> None:
    client = ScriptedCluster(nodes(**changes))
    undo(client, 2, Format.TABLE)  # type: ignore[arg-type]
    assert said in capsys.readouterr().err
    assert client.asked == (["undrain 2"] if changes else [])
