"""penstock group, and reading as a member."""

import subprocess
import sys

from tests.support.waiting import eventually


def committed(penstock, group):
    (described,) = penstock("group", "describe", group, "-o", "json").json
    return {row["partition"]: (row["committed"], row["lag"]) for row in described["partitions"]}


def test_a_group_goes_on_where_it_was_and_commits_what_was_printed(penstock, topic) -> None:
    penstock("produce", topic, "-p", "0", stdin="1\n2\n3\n4\n5\n")
    group = f"{topic}-group"
    assert penstock("consume", topic, "--group", group, "-n", "2").out == "1\n2\n"
    assert committed(penstock, group)[0] == (2, 3)
    assert penstock("consume", topic, "--group", group).out == "3\n4\n5\n"
    assert penstock("consume", topic, "--group", group).out == ""
    assert committed(penstock, group)[0] == (5, 0)
    assert group in [row["group"] for row in penstock("group", "ls", "-o", "json").json]


def test_reset_is_a_dry_run_until_told_otherwise(penstock, topic) -> None:
    penstock("produce", topic, "-p", "0", stdin="1\n2\n3\n")
    group = f"{topic}-group"
    penstock("consume", topic, "-g", group)
    shown = penstock("group", "reset", group, "--to-earliest", "-o", "json")
    rows = {row["partition"]: (row["committed"], row["new_offset"], row["applied"]) for row in shown.json}
    assert rows[0] == (3, 0, False)
    assert "add --execute" in shown.err
    assert committed(penstock, group)[0] == (3, 0)
    for words, offset in (
        (["--to-earliest"], 0),
        (["--to-latest"], 3),
        (["--to-offset", "1"], 1),
        (["--to-offset", "99"], 3),
        (["--shift-by", "-2"], 1),
        (["--shift-by", "-9"], 0),
        (["--to-datetime", "2100-01-01"], 3),
        (["--to-datetime", "2000-01-01T00:00:00Z"], 0),
    ):
        penstock("group", "reset", group, *words, "--topic", f"{topic}:0", "--execute")
        assert committed(penstock, group)[0][0] == offset, words
    assert penstock("consume", topic, "-g", group).out == "1\n2\n3\n"


def test_a_group_that_does_not_exist(penstock, topic) -> None:
    penstock("group", "describe", "no-such-group", code=3)
    penstock("group", "rm", "no-such-group", code=3)
    penstock("group", "rm", "no-such-group", "--if-exists")
    refused = penstock("group", "reset", "no-such-group", "--to-latest", code=3)
    assert refused.err == "error: There is no group no-such-group (GROUP_ID_NOT_FOUND); see penstock group ls\n"
    made = penstock("group", "reset", f"{topic}-new", "--to-earliest", "--topic", topic, "--execute", "-o", "ndjson")
    assert [(row["partition"], row["new_offset"]) for row in made.lines] == [(0, 0), (1, 0)]
    penstock("group", "rm", f"{topic}-new")
    penstock("group", "describe", f"{topic}-new", code=3)


def test_a_reset_of_a_partition_that_is_not_there(penstock, topic) -> None:
    penstock("topic", "create", f"{topic}-one", "-p", "1")
    words = ("group", "reset", "g", "--to-latest", "--topic")
    assert "has no partition 4: it has only partition 0" in penstock(*words, f"{topic}-one:4", code=3).err
    assert "has no partition 2: it has partitions 0 to 1" in penstock(*words, f"{topic}:2", code=3).err
    assert "write TOPIC, or TOPIC:0,1" in penstock(*words, f"{topic}:x", code=2).err


def test_a_group_with_members_is_left_alone(penstock, topic, environment) -> None:
    group = f"{topic}-group"
    member = subprocess.Popen(
        [sys.executable, "-m", "penstock", "consume", topic, "--group", group, "--follow"], env=environment
    )
    try:

        def members():
            rows = penstock("group", "ls", "-o", "json").json
            return group in [row["group"] for row in rows if row["state"] == "Stable"]

        eventually(members, what="the member has joined")
        (described,) = penstock("group", "describe", group, "-o", "json").json
        assert described["members"][0]["partitions"] == [f"{topic}/0", f"{topic}/1"]
        refused = penstock("group", "reset", group, "--topic", topic, "--to-latest", "--execute", code=1)
        assert "has members; stop them" in refused.err
        penstock("group", "rm", group, code=1)
    finally:
        member.terminate()
        member.wait(30)
