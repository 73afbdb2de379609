"""penstock topic."""


def test_the_life_of_a_topic(penstock) -> None:
    assert penstock("topic", "create", "life", "-p", "3", "-c", "retention.ms=1000000").err == "Created topic life\n"
    again = penstock("topic", "create", "life", code=1)
    assert again.err == "error: Topic life already exists (TOPIC_ALREADY_EXISTS); --if-not-exists accepts that\n"
    assert penstock("topic", "create", "life", "--if-not-exists").err == "Topic life exists already\n"
    (row,) = [row for row in penstock("topic", "ls", "-o", "ndjson").lines if row["topic"] == "life"]
    assert (row["partitions"], row["replicas"], row["internal"]) == (3, 1, False)
    (described,) = penstock("topic", "describe", "life", "-o", "json").json
    assert described["configs"] == {"retention.ms": "1000000"}
    assert [part["partition"] for part in described["partition_list"]] == [0, 1, 2]
    changed = penstock(
        "topic", "config", "life", "--set", "cleanup.policy=compact", "--unset", "retention.ms", "--partitions", "4"
    )
    assert changed.err == "Topic life has 4 partitions now; it had 3\n"
    configs = penstock("topic", "config", "life", "-o", "json").json
    assert [(row["name"], row["value"], row["source"]) for row in configs] == [("cleanup.policy", "compact", "topic")]
    everything = penstock("topic", "config", "life", "--all", "-o", "json").json
    assert {"retention.ms", "segment.bytes", "min.insync.replicas"} <= {row["name"] for row in everything}
    assert "partitions 4" in penstock("topic", "describe", "life").out
    assert penstock("topic", "rm", "life").err == "Removed topic life\n"
    gone = penstock("topic", "rm", "life", code=3)
    assert gone.err == "error: There is no topic 'life' (UNKNOWN_TOPIC_OR_PARTITION); see penstock topic ls\n"
    penstock("topic", "rm", "life", "--if-exists")
    unknown = penstock("topic", "describe", "life", code=3)
    assert unknown.err.count("penstock topic ls") == 1


def test_a_dry_run_makes_nothing(penstock) -> None:
    penstock("topic", "create", "dry", "--dry-run")
    penstock("topic", "describe", "dry", code=3)


def test_a_refused_config_is_a_sentence(penstock, topic) -> None:
    refused = penstock("topic", "config", topic, "--set", "retention.ms=soon", code=1)
    assert "retention.ms" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_the_long_list_counts_records_and_bytes(penstock, topic) -> None:
    penstock("produce", topic, stdin="a\nb\nc\n")
    (row,) = [row for row in penstock("topic", "ls", "--long", "-o", "ndjson").lines if row["topic"] == topic]
    assert row["records"] == 3
    assert row["bytes"] > 100


def test_the_brokers_own_topics_are_shown_when_asked_for(penstock) -> None:
    assert "__consumer_offsets" not in penstock("topic", "ls").out
    assert "__consumer_offsets" in penstock("topic", "ls", "--internal").out


def test_the_main_flow_in_processes_of_their_own(penstock_process) -> None:
    penstock_process("topic", "create", "flow")
    penstock_process("produce", "flow", "-K", ":", stdin="a:1\nb:2\n")
    assert penstock_process("consume", "flow", "--group", "flow-readers").out == "1\n2\n"
    assert [row["key"] for row in penstock_process("consume", "flow", "-o", "json").json] == ["a", "b"]
    (described,) = penstock_process("group", "describe", "flow-readers", "-o", "ndjson").lines
    assert [row["committed"] for row in described["partitions"]] == [2]
    penstock_process("group", "rm", "flow-readers")
    penstock_process("topic", "rm", "flow")
    assert penstock_process("topic", "describe", "flow", code=3).out == ""


def test_a_description_fits_a_terminal_of_80_columns(penstock) -> None:
    penstock("topic", "create", "narrow", "--partitions", "2")
    penstock("produce", "narrow", stdin="x" * 1000 + "\n")
    shown = penstock("topic", "describe", "narrow").out.splitlines()
    assert max(map(len, shown[1:])) <= 80
    assert shown[1].split() == ["part", "leader", "replicas", "in", "sync", "first", "next", "records", "bytes"]
    assert len(shown) == 1 + 2 + 2


def test_a_topic_that_has_another_number_of_partitions_already_is_told_as_such(penstock) -> None:
    penstock("topic", "create", "has-one", "--partitions", "1")
    penstock("topic", "create", "has-three", "--partitions", "3")
    words = ("topic", "create", "has-one", "has-three", "--if-not-exists", "--partitions")
    assert penstock(*words, "3").err == (
        "Topic has-one exists already, with 1 partition, not 3\nTopic has-three exists already\n"
    )
    assert penstock(*words, "2", "--dry-run").err == (
        "Topic has-one exists already, with 1 partition, not 2\nTopic has-three exists already, with 3 partitions, not 2\n"
    )
