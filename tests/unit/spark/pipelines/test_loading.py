"""Each problem of a file is reported with its line and what to write instead: every text, word for word."""

from pathlib import Path

import pytest

from penstock.spark.pipelines.errors import FileErrors, PipelineUsageError
from penstock.spark.pipelines.loading import bad_name, load, loads
from penstock.spark.pipelines.model import Mode, OnBad, SinkKind

GOOD = '''\
[pipeline]
name = "big-orders"
description = "Orders above a hundred"
trigger = "10s"
rate = 1000

[source]
topics = ["orders"]
start = "earliest"
schema = "id INT, amount DOUBLE, at TIMESTAMP"
on_bad = "dead_letter"
event_time = "at"
watermark = "10 minutes"

[[steps]]
as = "big"
sql = """
SELECT *
FROM orders
WHERE amount > 100
"""

[[sinks]]
kind = "topic"
topic = "big-orders"
key = "CAST(id AS STRING)"

[[sinks]]
kind = "parquet"
path = "lake/big"
partition_by = ["id"]
'''


def read(text, **overrides):
    return loads(text, Path("p.toml"), overrides)


def problems(text, overrides=None):
    with pytest.raises(FileErrors) as caught:
        loads(text, Path("p.toml"), overrides or {})
    return [str(problem) for problem in caught.value.problems]


def test_one_mistake_in_the_head_hides_no_other() -> None:
    text = changed("rate = 1000", 'rate = "many"').replace('trigger = "10s"', 'trigger = "soon"')
    text = text.replace('kind = "topic"', 'kind = "topics"')
    assert [" ".join(problem.partition(":")[2].split()[:3]) for problem in problems(text)] == [
        "4: [pipeline] trigger:",
        "5: [pipeline] rate:",
        "24: [[sinks]] kind:",
    ]


def test_a_file_with_a_head_alone_lacks_two_things() -> None:
    told = problems('[pipeline]\nname = "x"\n')
    assert [problem.split(";")[0] for problem in told] == [
        "p.toml:1: the source is missing",
        "p.toml:1: the sink is missing",
    ]


def test_a_whole_file() -> None:
    pipeline = read(GOOD)
    assert pipeline.head.name == "big-orders"
    source = pipeline.sources["orders"]
    assert (source.on_bad, source.watermark, source.event_time) == (OnBad.DEAD_LETTER, "10 minutes", "at")
    assert [step.as_ for step in pipeline.steps] == ["big"]
    topic, lake = pipeline.sinks
    assert (topic.kind, topic.from_, topic.name, topic.mode) == (SinkKind.TOPIC, "big", "topic-big-orders", Mode.APPEND)
    assert (lake.kind, lake.from_, lake.name, lake.partition_by) == (SinkKind.PARQUET, "big", "parquet-big", ["id"])
    assert pipeline.lines["steps.0.sql"] == 18


def test_the_shortest_file_is_called_after_itself() -> None:
    pipeline = loads('[source]\ntopics = "a"\n[[sinks]]\nkind = "console"\n', Path("dir/copy.toml"), {})
    assert pipeline.head.name == "copy"
    assert [sink.from_ for sink in pipeline.sinks] == ["a"]


def test_several_topics_are_one_source_called_source() -> None:
    pipeline = read(
        '[source]\ntopics = ["a", "b"]\n[[steps]]\nsql = "SELECT * FROM source"\n[[sinks]]\nkind = "console"\n'
    )
    assert list(pipeline.sources) == ["source"]
    assert pipeline.steps[0].as_ == "step1"


def test_a_time_may_be_written_without_quotes() -> None:
    pipeline = read('[source]\ntopics = "a"\nstart = 2026-03-01T12:00:00Z\n[[sinks]]\nkind = "console"\n')
    assert pipeline.sources["a"].start == "2026-03-01T12:00:00+00:00"


def changed(old, new):
    """The good file with one thing changed."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


SEVERAL = """\
[sources.orders]
topics = "orders"
[sources.payments]
topics = "payments"
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # TOML itself.
        (changed('name = "big-orders"', "name = big-orders"), 'p.toml:2: invalid TOML: Invalid value in "name = big-orders"; strings need quotes: key = "value"'),
        (changed("rate = 1000", "rate 1000"), "p.toml:5: invalid TOML: Expected '=' after a key in a key/value pair in \"rate 1000\"; a key is followed by = and its value"),
        (changed("rate = 1000", "rate = 1000\nrate = 2"), 'p.toml:6: invalid TOML: Cannot overwrite a value in "rate = 2"; the key appears twice; remove one'),
        # Keys and types.
        (changed("trigger =", "triger ="), "p.toml:4: [pipeline] triger: unknown; did you mean trigger?"),
        (changed("topics =", "topcs ="), "p.toml:8: [source] topcs: unknown; did you mean topics?"),
        (changed("as = ", "zzz = "), "p.toml:16: [[steps]] zzz: unknown; available: sql, python, deduplicate, from, as, event_time, watermark"),
        (changed("rate = 1000", 'rate = "1000"'), 'p.toml:5: [pipeline] rate: got "1000", expected an integer; write 1000 without quotes'),
        (changed("rate = 1000", "rate = 0"), "p.toml:5: [pipeline] rate: got 0, expected an integer of at least 1; omit it for no limit"),
        (changed("rate = 1000", "rate = true"), "p.toml:5: [pipeline] rate: got true, expected an integer"),
        (changed('name = "big-orders"', "name = 7"), 'p.toml:2: [pipeline] name: got 7, expected a string; write "7"'),
        (changed('name = "big-orders"', 'name = "big orders"'), 'p.toml:2: [pipeline] name: got "big orders", expected at most 100 letters, digits, ., _ and -'),
        (changed('topics = ["orders"]', "topics = 3"), "p.toml:8: [source] topics: got 3, expected a string or a list of strings"),
        (changed('topics = ["orders"]', "topics = []"), 'p.toml:8: [source] topics: the list is empty; write topics = ["orders"]'),
        (changed('on_bad = "dead_letter"', 'on_bad = "dead-letter"'), 'p.toml:11: [source] on_bad: got "dead-letter", expected "null", "fail" or "dead_letter"; did you mean "dead_letter"?'),
        (changed('kind = "topic"', 'kind = "topics"'), 'p.toml:24: [[sinks]] kind: got "topics", expected "topic", "parquet", "delta", "iceberg" or "console"; did you mean "topic"?'),
        (changed('kind = "parquet"\n', ""), 'p.toml:28: [[sinks]] kind is missing; write kind = "topic", "parquet", "delta", "iceberg" or "console"'),
        (changed('partition_by = ["id"]', 'partition_by = "id"'), 'p.toml:31: [[sinks]] partition_by: got "id", expected a list of strings; write ["id"]'),
        (changed("[[steps]]", "[steps]"), "p.toml:15: [steps]: expected a list of tables; write [[steps]] with two brackets"),
        (GOOD.replace("[pipeline]", "[pipelin]"), "p.toml:1: [pipelin]: unknown; did you mean pipeline?"),
        ("pipeline = 3\n" + GOOD[GOOD.index("[source]") :], "p.toml:1: [pipeline]: got 3, expected a table: write [pipeline] on a separate line"),
        # What texts mean.
        (changed('trigger = "10s"', "trigger = 10"), 'p.toml:4: [pipeline] trigger: got 10, expected a string; write "10s"'),
        (changed('trigger = "10s"', 'trigger = "often"'), 'p.toml:4: [pipeline] trigger: "often" is not a duration such as "10s", or "once"'),
        (changed('start = "earliest"', 'start = "erliest"'), 'p.toml:9: [source] start: "erliest" is not "earliest", "latest", a time such as "2026-03-01T12:00:00Z", or offsets'),
        (changed('watermark = "10 minutes"', 'watermark = "ten"'), 'p.toml:13: [source] watermark: "ten" is not a duration such as "10s", "5 minutes" or "2 hours"'),
        (changed('watermark = "10 minutes"\n', ""), 'p.toml:12: [source] event_time: also requires a watermark; write watermark = "10 minutes"'),
        (changed('schema = "id INT, amount DOUBLE, at TIMESTAMP"\n', ""), 'p.toml:10: [source] on_bad: applies to JSON values and requires a schema; write schema = "id INT, ..."'),
        (changed("DOUBLE", "DUBLE"), "p.toml:10: [source] schema: amount has the unknown type DUBLE; did you mean DOUBLE?"),
        (changed("id INT,", "id,"), 'p.toml:10: [source] schema: "id" has no type; write "id STRING"'),
        # Queries: the line inside the text.
        (changed("FROM orders", "FROM ordes"), "p.toml:19: [[steps]] sql: unknown source or step ordes; did you mean orders?"),
        (changed("> 100", "> (100"), "p.toml:20: [[steps]] sql: a closing ) is missing"),
        (changed("SELECT *", "SELCT *"), "p.toml:18: [[steps]] sql: a query starts with SELECT, WITH, FROM or VALUES, not with SELCT"),
        # What belongs together.
        ('[[sinks]]\nkind = "console"\n', 'p.toml:1: the source is missing; write [source] and topics = ["..."]'),
        ('[source]\ntopics = "a"\n', 'p.toml:1: the sink is missing; write [[sinks]], kind = "topic" and topic = "..."'),
        (changed('topics = ["orders"]\n', ""), 'p.toml:7: [source]: the input is missing; write topics = ["..."], pattern = "..." or lake = "..."'),
        (changed('start = "earliest"', 'pattern = "o.*"'), "p.toml:9: [source]: topics and pattern are both set; remove one"),
        (changed('topic = "big-orders"\n', ""), 'p.toml:23: [[sinks]] topic is missing; write topic = "..."'),
        (changed('path = "lake/big"\n', ""), 'p.toml:28: [[sinks]] path is missing; write path = "./lake"'),
        (changed('path = "lake/big"', 'path = "lake/big"\nkey = "id"'), 'p.toml:31: [[sinks]] key: a sink of kind "parquet" does not have this key; remove it'),
        (changed('path = "lake/big"', 'path = "lake/big"\nmode = "update"'), 'p.toml:31: [[sinks]] mode: a parquet table supports only "append": each row is written once it is final; set a watermark for windows, or write to a topic'),
        (changed('key = "CAST', 'from = "bigg"\nkey = "CAST'), "p.toml:26: [[sinks]] from: unknown source or step bigg; did you mean big?"),
        (changed('as = "big"', 'as = "Orders"'), "p.toml:16: [[steps]] as: the name Orders is already used; choose another name"),
        (changed('as = "big"', 'python = "json:loads"'), "p.toml:16: [[steps]]: sql and python are both set; remove one"),
        (GOOD + '[[steps]]\nas = "x"\n', 'p.toml:32: [[steps]]: the step is empty; write sql = "SELECT ..."'),
        (changed('as = "big"', 'from = "orders"'), "p.toml:16: [[steps]] from: a query names its own inputs; remove this key"),
        (GOOD + '[[steps]]\npython = "nosuch.py:f"\n', "p.toml:33: [[steps]] python: there is no file nosuch.py in the same folder"),
        (GOOD + '[[steps]]\ndeduplicate = ["id"]\nwatermark = "1s"\n', 'p.toml:34: [[steps]]: event_time = "COLUMN" is also required'),
        (GOOD.replace('path = "lake/big"\npartition_by = ["id"]', 'path = "lake/big"\n[[sinks]]\nkind = "parquet"\npath = "other/big"'), 'p.toml:31: [[sinks]]: two sinks have the name parquet-big; write name = "..." to distinguish them'),
        (SEVERAL + '[source]\ntopics = "a"\n[[sinks]]\nkind = "console"\n', "p.toml:1: [sources]: there is also a [source]; rename it to [sources.NAME] like the others"),
        (SEVERAL + '[[sinks]]\nkind = "console"\n', 'p.toml:5: [[sinks]]: there are several sources; write from = "orders"'),
        (SEVERAL + '[[steps]]\npython = "json:loads"\n[[sinks]]\nkind = "console"\n', 'p.toml:5: [[steps]]: there are several sources; write from = "orders"'),
        (SEVERAL.replace('"payments"\n', '"payments"\nas = "p"\n') + '[[steps]]\nsql = "SELECT * FROM orders"\n[[sinks]]\nkind = "console"\n', "p.toml:5: [sources.payments] as: the name is already payments; remove this key"),
        ('[source]\ntable = "queues"\n[[sinks]]\nkind = "console"\n', 'p.toml:2: [source] table: "queues" is unknown; did you mean queue?'),
        ('[source]\ntopics = "a-b"\n[[steps]]\nsql = "SELECT * FROM a-b"\n[[sinks]]\nkind = "console"\n', "p.toml:4: [[steps]] sql: write `a-b` in backquotes"),
        ('[source]\ntopics = "a"\nstatic = true\n[[sinks]]\nkind = "console"\n', "p.toml:3: every source is static, but a pipeline needs at least one stream: remove static from a source"),
        # Built-ins.
        ('[pipeline]\nkind = "transfrm"\n', 'p.toml:2: [pipeline] kind: "transfrm" is unknown; did you mean transform?'),
        ('[pipeline]\nkind = "stats"\n', "p.toml:2: [stats] is missing; add this table with the options"),
        ('[pipeline]\nkind = "stats"\n[stats]\nto = "s"\n', 'p.toml:3: [stats] topics is missing; write topics = ["..."]'),
        ('[pipeline]\nkind = "stats"\n[stats]\ntopics = ["a"]\nevry = "1s"\n', "p.toml:5: [stats] evry: unknown; did you mean every?"),
        ('[pipeline]\nkind = "stats"\n[stats]\ntopics = ["a"]\n[[sinks]]\nkind = "console"\n', 'p.toml:5: [sinks]: a pipeline of kind "stats" can contain only the tables [pipeline] and [stats]'),
        ('[stats]\ntopics = ["a"]\n[source]\ntopics = "a"\n[[sinks]]\nkind = "console"\n', 'p.toml:1: [stats]: the table of a built-in requires kind = "stats" in [pipeline]'),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line_and_what_to_write(text, told) -> None:
    assert problems(text) == [told]


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    text = changed("rate = 1000", "rat = 1000").replace('kind = "topic"', 'kind = "topik"')
    assert [line.partition(" ")[0] for line in problems(text)] == ["p.toml:5:", "p.toml:24:"]
    text = changed("topics =", "topcs =").replace('kind = "topic"', 'kind = "topik"')
    assert [line.partition(" ")[0] for line in problems(text)] == ["p.toml:8:", "p.toml:24:"]


def test_set_wins_over_the_file() -> None:
    pipeline = read(
        GOOD, **{"source.start": "latest", "pipeline.rate": "5", "sinks.0.topic": "other", "pipeline.conf.a": "b"}
    )
    assert (pipeline.sources["orders"].start, pipeline.head.rate, pipeline.sinks[0].topic) == ("latest", 5, "other")
    assert pipeline.head.conf == {"a": "b"}


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("source.topcs", "x", "--set: [source] topcs: unknown; did you mean topics?"),
        ("pipeline.rate", "x", '--set: [pipeline] rate: got "x", expected an integer'),
        ("sinks.7.topic", "x", "--set: sinks.7.topic: 7 does not exist; write TABLE.KEY=VALUE, such as source.start=latest"),
        ("sinks.0", "x", "--set: sinks.0 is not a key; write TABLE.KEY=VALUE, such as source.start=latest or sinks.0.topic=out"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_reported_as_such(path, value, told) -> None:
    assert problems(GOOD, {path: value}) == [told]


def test_a_file_that_is_not_there_names_those_that_are(tmp_path) -> None:
    (tmp_path / "orders.toml").write_text(GOOD)
    assert load(tmp_path / "orders.toml").head.name == "big-orders"
    with pytest.raises(PipelineUsageError, match=r"File .*order\.toml does not exist; did you mean orders\.toml\?"):
        load(tmp_path / "order.toml")


def test_a_file_that_cannot_be_read_is_reported(tmp_path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineUsageError, match="cannot be read"):
        load(tmp_path / "binary.toml")


def test_a_byte_order_mark_is_ignored(tmp_path) -> None:
    (tmp_path / "orders.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(tmp_path / "orders.toml").head.name == "big-orders"


def test_numbers_and_lists_that_python_cannot_read_are_reported() -> None:
    for text in (f"a = {'[' * 5000}{']' * 5000}", f"a = {'9' * 5000}"):
        assert "invalid TOML" in problems(text)[0]
    assert '[pipeline] rate: got "999' in problems(GOOD, {"pipeline.rate": "9" * 5000})[0]


def test_two_queries_share_neither_a_checkpoint_nor_a_folder() -> None:
    sinks = GOOD + '\n[[sinks]]\nkind = "topic"\ntopic = "x"\nname = "bad-orders"\n'
    assert problems(sinks)[0].endswith(
        "bad-orders is the name of the query that writes the dead letters of orders; choose another name"
    )
    sinks = GOOD + "".join(f'\n[[sinks]]\nkind = "delta"\nname = "{name}"\npath = "x/y{name}"\n' for name in ("", "/"))
    assert any(told.endswith("two sinks write to x/y; use a separate folder for each") for told in problems(sinks))


def test_a_name_leads_to_no_other_folder() -> None:
    assert bad_name("/../../orders") == "bad-_.._.._orders"
