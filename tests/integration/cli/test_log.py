"""penstock log: a data directory without its broker, sound and damaged."""

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.records.batch import Compression

ORDERS = 20


@pytest.fixture(scope="module")
def made(penstock_broker_factory):
    """The folder of a broker that was used and stopped."""
    broker = penstock_broker_factory()
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("orders", partitions=2, configs={"segment.bytes": "300"})
        with Producer(cluster, compression=Compression.ZSTD) as producer:
            for number in range(ORDERS):
                producer.send("orders", b"%d " % number * 10, key=b"k", partition=0, timestamp_ms=1000 + number)
                producer.flush()
        Producer(cluster).produce("orders", b"\xff", partition=1)
    broker.stop()
    return broker.data_dir


@pytest.fixture
def data(made, tmp_path):
    import shutil

    return shutil.copytree(made, tmp_path / "data")


def segments(data):
    """The segments of partition 0, oldest first."""
    (topic,) = [path for path in (data / "topics").iterdir() if len(list((path / "0").glob("*.log"))) > 3]
    return sorted((topic / "0").glob("*.log"))


def flip(path, position) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_sound_directory_is_sound(penstock, data) -> None:
    done = penstock("log", "verify", "--data-dir", str(data))
    assert done.out == ""
    assert ": no damage" in done.err
    rows = [
        row for row in penstock("log", "verify", "--data-dir", str(data), "-o", "json").json if row["topic"] == "orders"
    ]
    assert sum(row["records"] for row in rows) == ORDERS + 1
    assert all(row["ok"] for row in rows)
    chosen = penstock("log", "verify", "--data-dir", str(data), "-t", "orders", "-p", "1", "-o", "ndjson").lines
    assert {(row["topic"], row["partition"]) for row in chosen} == {("orders", 1)}


def test_a_flipped_bit_is_found_and_named(penstock, data) -> None:
    flip(segments(data)[1], 70)
    done = penstock("log", "verify", "--data-dir", str(data), "-o", "json", code=1)
    (bad,) = [row for row in done.json if not row["ok"]]
    assert (bad["topic"], bad["partition"], bad["file"]) == ("orders", 0, segments(data)[1].name)
    (finding,) = [finding for finding in bad["findings"] if finding["severity"] == "error"]
    assert bad["base_offset"] <= finding["first_offset"] <= finding["last_offset"] < ORDERS
    assert ": 1 problem;" in done.err
    table = penstock("log", "verify", "--data-dir", str(data), code=1)
    assert "orders" in table.out
    assert "error" in table.out
    penstock("log", "verify", "--data-dir", str(data), "--partition", "1")


def test_a_broken_index_is_a_note(penstock, data) -> None:
    index = segments(data)[0].with_suffix(".timeindex")
    index.unlink()
    done = penstock("log", "verify", "--data-dir", str(data))
    assert "note" in done.out
    assert "1 notes" in done.err


def test_a_dump_has_every_batch(penstock, data) -> None:
    rows = penstock("log", "dump", "orders", "--data-dir", str(data), "-p", "0", "-o", "ndjson").lines
    assert [row["base_offset"] for row in rows] == list(range(ORDERS))
    assert {row["compression"] for row in rows} == {"zstd"}
    assert [row["base_sequence"] for row in rows] == list(range(ORDERS))
    assert len({row["segment"] for row in rows}) == len(segments(data))
    both = penstock("log", "dump", "orders", "--data-dir", str(data), "-o", "json").json
    assert len(both) == ORDERS + 1
    some = penstock("log", "dump", "orders", "--data-dir", str(data), "--from", "5", "-n", "2", "-o", "json").json
    assert [row["base_offset"] for row in some] == [5, 6]


def test_a_dump_can_open_the_records(penstock, data) -> None:
    rows = penstock("log", "dump", "orders", "--data-dir", str(data), "--records", "-o", "ndjson").lines
    records = [record for row in rows for record in row["records"]]
    assert [record["value"] for record in records[:2]] == ["0 " * 10, "1 " * 10]
    assert records[0]["timestamp"] == 1000
    assert records[-1]["encoding"] == "base64"
    table = penstock("log", "dump", "orders", "--data-dir", str(data), "--records", "-n", "1").out
    assert "0 0 0" in table
    assert "1970-01-01T00:00:01.000Z" in table


def test_a_dump_goes_on_behind_the_damage(penstock, data) -> None:
    flip(segments(data)[1], 70)
    rows = penstock("log", "dump", "orders", "--data-dir", str(data), "-p", "0", "--records", "-o", "ndjson").lines
    (bad,) = [row for row in rows if row["fault"]]
    assert (bad["crc_ok"], bad["records"]) == (False, [])
    assert rows[-1]["base_offset"] == ORDERS - 1


def test_topics_go_by_their_ids_when_their_names_are_lost(penstock, data) -> None:
    (data / "metadata.sqlite").write_bytes(b"no database")
    (topic,) = {path.parents[1].name for path in segments(data)}
    assert penstock("log", "dump", topic, "--data-dir", str(data), "-n", "1", "-o", "ndjson").lines[0]["topic"] == topic
    penstock("log", "dump", "orders", "--data-dir", str(data), code=3)


def test_a_directory_in_use_is_left_alone_unless_told_otherwise(penstock, penstock_broker) -> None:
    data = str(penstock_broker.data_dir)
    assert "A broker is using" in penstock("log", "verify", "--data-dir", data, code=1).err
    penstock("produce", "looked-at-live", stdin="x\n")
    (row,) = penstock("log", "dump", "looked-at-live", "--data-dir", data, "--live", "-o", "json").json
    assert row["record_count"] == 1


def test_what_is_not_there_is_told(penstock, data, tmp_path) -> None:
    assert (
        "does not exist; specify it with --data-dir"
        in penstock("log", "verify", "--data-dir", str(tmp_path / "none"), code=3).err
    )
    assert "no records of topic 'none'" in penstock("log", "dump", "none", "--data-dir", str(data), code=3).err


def test_a_dump_for_people_fits_80_columns_and_has_one_heading(penstock, data) -> None:
    usual = penstock("log", "dump", "orders", "--data-dir", str(data)).out.splitlines()
    assert max(map(len, usual)) <= 80
    assert usual[0].split() == ["part", "offsets", "records", "bytes", "time", "codec", "fault"]
    assert len(usual) == 2 + ORDERS + 1
    assert usual[2].split()[:3] == ["0", "0", "1"]
    with_records = penstock("log", "dump", "orders", "--data-dir", str(data), "--records").out
    assert with_records.count("offsets") == 1
    assert f"    1  k  {'1 ' * 10}\n" in with_records
    wide = penstock("log", "dump", "orders", "--data-dir", str(data), "--wide", "-n", "1").out
    assert "base sequence" in wide


def test_a_partition_that_is_not_there_is_exit_code_3(penstock, data) -> None:
    dumped = penstock("log", "dump", "orders", "--data-dir", str(data), "-p", "9", code=3)
    assert "has no partition 9 of 'orders'; it has partitions 0 to 1" in dumped.err
    assert "has no partition 9" in penstock("log", "verify", "--data-dir", str(data), "-p", "9", code=3).err
