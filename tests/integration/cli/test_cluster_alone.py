"""penstock cluster, asked of a broker that is alone."""

import pytest

from penstock.cli.failures import Exit


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
@pytest.mark.parametrize("where", [("--to", "1,2"), ("--replication-factor", "2")])
def test_no_replica_elsewhere_is_promised_or_given(penstock, how, where) -> None:
    penstock("topic", "create", "staying", "--if-not-exists")
    said = penstock("cluster", "reassign", "staying", *where, how, code=Exit.FAILED)
    assert said.err == "error: this broker is alone: no other node could have a replica; nothing was moved\n"
    assert said.out == ""
