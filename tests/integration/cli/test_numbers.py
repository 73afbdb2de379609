"""penstock topic stats and penstock group status, over HTTP."""

import pytest


@pytest.fixture(scope="module")
def penstock_broker(penstock_broker_factory):
    """One that listens for HTTP too."""
    return penstock_broker_factory({"listeners.http": "127.0.0.1:0"})


@pytest.fixture
def asked(penstock, penstock_broker, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HTTP", penstock_broker.address("http"))
    return penstock


def test_a_topic_is_told_in_numbers(asked, topic) -> None:
    asked("produce", topic, "-p", "0", stdin="1\n2\n3\n")
    asked("consume", topic)
    found = asked("topic", "stats", topic, "-o", "json").json
    assert (found["topic"], found["records"], found["partitions_unknown"]) == (topic, 3, 0)
    assert [(row["start_offset"], row["end_offset"]) for row in found["partitions"]] == [(0, 3), (0, 0)]
    assert found["size_bytes"] == sum(row["size_bytes"] for row in found["partitions"]) > 0
    [flow] = found["flows"]
    assert (flow["gateway"], flow["records_in"], flow["records_out"]) == ("kafka", 3, 3)
    table = asked("topic", "stats", topic).out
    assert table.startswith(f"topic {topic}  records 3  bytes {found['size_bytes']}  segments ")
    assert "gateway" in table
    assert len(asked("topic", "stats", topic, "-o", "ndjson").lines) == 1


def test_a_group_is_told_with_its_lag_in_records_and_in_age(asked, topic) -> None:
    asked("produce", topic, "-p", "0", stdin="1\n2\n3\n")
    group = f"{topic}-group"
    asked("consume", topic, "--group", group, "-n", "1")
    found = asked("group", "status", group, "-o", "json").json
    assert (found["group"], found["state"], found["lag"], found["members"]) == (group, "Empty", 2, [])
    of_first = found["partitions"][0]
    assert (of_first["committed"], of_first["end_offset"], of_first["lag"]) == (1, 3, 2)
    assert found["lag_ms"] >= 0
    table = asked("group", "status", group).out
    assert table.startswith(f"group {group}  state Empty  members 0  lag 2 (")
    assert topic in table


def test_what_is_not_there_is_said(asked) -> None:
    assert asked("topic", "stats", "no-such-topic", code=3).err.startswith("error: ")
    assert asked("group", "status", "no-such-group", code=3).err.startswith("error: ")


def test_a_broker_that_is_not_there_is_said(penstock) -> None:
    assert "--http" in penstock("topic", "stats", "t", "--http", "127.0.0.1:1", code=4).err
    assert "--http" in penstock("group", "status", "g", "--http", "nonsense", code=2).err
