"""The programs in docs/spark.md do what they say: marked blocks are run one after the other, in one namespace, as a reader would."""

import json
import re
from pathlib import Path

from penstock.client import Admin

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"
BLOCK = re.compile(r"<!-- test: spark -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def values_of(spark, bootstrap, topic):
    frame = spark.read.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    return sorted((row.key, row.value) for row in frame.select("key", "value").collect())


def test_the_programs_of_the_spark_document_do_what_they_say(
    spark, bootstrap, cluster, produce, tmp_path, monkeypatch, capsys
) -> None:
    Admin(cluster).create_topic("sales", partitions=2)
    for topic in ("big-sales", "people", "counts"):
        Admin(cluster).create_topic(topic, partitions=1)
    sales = [(b"a", b'{"id": 1, "amount": 10.5}'), (b"b", b'{"id": 2, "amount": 99}')]
    produce("sales", sales)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / "spark.md").read_text(encoding="utf-8"))
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        text = block.replace(ADDRESS, bootstrap).replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        exec(compile(text, "docs/spark.md", "exec"), names)
    assert '{"id": 2, "amount": 99}' in capsys.readouterr().out
    assert [(key, json.loads(value)) for key, value in values_of(spark, bootstrap, "big-sales")] == [
        (b"b", {"id": 2, "amount": 99.0})
    ]
    assert [key for key, _ in values_of(spark, bootstrap, "people")] == [b"anna", b"bert"]
    assert sum(int(value) for _, value in values_of(spark, bootstrap, "counts")) == 2
