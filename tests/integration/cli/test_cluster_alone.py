"""penstock cluster, asked of a broker that is alone."""

import pytest

from penstock.cli.failures import Exit


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
@pytest.mark.parametrize("where", [("--to", "1,2"), ("--replication-factor", "2")])
def test_no_replica_elsewhere_is_promised_or_given(penstock, broker_process, monkeypatch, how, where) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker_process.bootstrap)
    penstock("topic", "create", "staying", "--if-not-exists")
    said = penstock("cluster", "reassign", "staying", *where, how, code=Exit.FAILED)
    assert said.err == "error: This broker runs alone, so no other node can have a replica. Nothing was moved.\n"
    assert said.out == ""


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
@pytest.mark.parametrize(
    ("where", "code", "why"),
    [
        (("--to", "1,2"), Exit.FAILED, "Node 2 is not up"),
        (("-r", "2"), Exit.USAGE, "2 replicas need 2 nodes, but only 1 is up"),
    ],
)
def test_nor_is_one_where_the_broker_does_not_listen_for_http(penstock, how, where, code, why) -> None:
    penstock("topic", "create", "staying", "--if-not-exists")
    assert why in penstock("cluster", "reassign", "staying", *where, how, code=code).err
