"""penstock produce, consume and tail."""

import signal
import subprocess
import sys

import pytest


def values(done):
    return [row["value"] for row in done.lines]


def test_lines_go_in_and_come_out(penstock, topic) -> None:
    assert penstock("produce", topic, "-p", "0", stdin="one\ntwo\n\nfour").err == f"produced 4 records to {topic}\n"
    assert penstock("consume", topic).out == "one\ntwo\n\nfour\n"


def test_bytes_pass_unchanged(penstock, topic) -> None:
    penstock("produce", topic, "-p", "0", stdin=b"\xff\xfe\x00\r\n")
    assert penstock("consume", topic).out.encode(errors="surrogateescape") == b"\xff\xfe\x00\r\n"
    (row,) = penstock("consume", topic, "-o", "json").json
    assert (row["value"], row["encoding"]) == ("//4ADQ==", "base64")


def test_files_keys_headers_and_compression(penstock, topic, tmp_path) -> None:
    (tmp_path / "a").write_text("anna:1\nbert:2\n")
    (tmp_path / "b").write_text("3\n")
    summary = penstock(
        *("produce", topic, str(tmp_path / "a"), str(tmp_path / "b"), "-K", ":", "-H", "h=x=y", "-H", "i="),
        *("-z", "zstd", "--acks", "1", "-o", "json"),
    ).json
    assert summary["records"] == 3
    assert sum(row["records"] for row in summary["partitions"]) == 3
    rows = penstock("consume", topic, "-o", "ndjson").lines
    assert sorted((row["key"] or "", row["value"]) for row in rows) == [("", "3"), ("anna", "1"), ("bert", "2")]
    assert rows[0]["headers"] == [{"key": "h", "value": "x=y"}, {"key": "i", "value": ""}]
    assert sorted(penstock("consume", topic, "-K", "=").out.split()) == ["3", "anna=1", "bert=2"]


def test_a_file_that_is_not_there_is_told(penstock, topic) -> None:
    assert "Cannot read absent" in penstock("produce", topic, "absent", code=1).err


def test_a_partition_that_is_not_there_is_exit_code_3(penstock, topic) -> None:
    assert "has partitions 0 to 1" in penstock("produce", topic, "-p", "7", stdin="x\n", code=3).err
    assert "has partitions 0 to 1" in penstock("consume", topic, "-p", "7", code=3).err
    penstock("topic", "create", f"{topic}-one", "-p", "1")
    assert "has only partition 0" in penstock("produce", f"{topic}-one", "-p", "7", stdin="x\n", code=3).err
    assert "has no partition 7: it has only partition 0" in penstock("consume", f"{topic}-one", "-p", "7", code=3).err
    penstock("consume", "no-such-topic", code=3)


def test_places_to_start_from(penstock, topic) -> None:
    penstock("produce", topic, "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    assert penstock("consume", topic, "--from", "7").out == "7\n8\n9\n"
    assert penstock("consume", topic, "--from", "latest").out == ""
    assert penstock("consume", topic, "-n", "2").out == "0\n1\n"
    assert penstock("consume", topic, "--last", "3").out == "7\n8\n9\n"
    assert penstock("consume", topic, "--last", "3", "-n", "1").out == "7\n"
    assert penstock("consume", topic, "--last", "100").out.count("\n") == 10
    assert penstock("consume", topic, "--from", "2020-01-01", "-n", "1").out == "0\n"
    assert penstock("consume", topic, "--from", "2100-01-01T00:00:00Z").out == ""
    outside = penstock("consume", topic, "-p", "0", "--from", "11", code=1)
    assert "has the offsets from 0 up to, but not including, 10" in outside.err


def test_a_moment_is_found_among_timestamps(penstock, topic) -> None:
    lines = "".join(
        f'{{"value":"{moment}","timestamp":{moment}}}\n' for moment in (1_600_000_000_000, 1_700_000_000_000)
    )
    penstock("produce", topic, "-p", "0", "-i", "ndjson", stdin=lines)
    assert penstock("consume", topic, "--from", "1650000000000").out == "1700000000000\n"
    assert penstock("consume", topic, "--from", "2022-04-15T00:00:00Z").out == "1700000000000\n"


def test_the_last_records_of_all_partitions_are_the_newest(penstock, topic) -> None:
    for partition, moment in ((0, 1000), (1, 2000), (0, 3000), (1, 4000)):
        line = f'{{"value":"{moment}","timestamp":{moment}}}\n'
        penstock("produce", topic, "-p", str(partition), "-i", "ndjson", stdin=line)
    assert penstock("consume", topic, "--last", "3").out == "2000\n3000\n4000\n"


def test_a_topic_can_be_copied(penstock, topic) -> None:
    penstock("produce", topic, "-K", ":", "-H", "h=1", stdin=b"k:v\n:\xff\nplain\n")
    copied = penstock("consume", topic, "-o", "ndjson")
    penstock("produce", f"{topic}-copy", "-i", "ndjson", stdin=copied.out)
    kept = ("key", "key_encoding", "value", "encoding", "headers", "timestamp")

    def contents(name):
        rows = penstock("consume", name, "-o", "ndjson").lines
        return sorted(str([row.get(field) for field in kept]) for row in rows)

    assert contents(topic) == contents(f"{topic}-copy")


def test_json_is_a_document_even_when_empty(penstock, topic) -> None:
    assert penstock("consume", topic, "-o", "json").json == []
    assert penstock("consume", topic, "-o", "table").err == "no records\n"


def test_a_table_of_records(penstock, topic) -> None:
    penstock("produce", topic, "-p", "1", "-k", "key", stdin="[red]value\n")
    shown = penstock("consume", topic, "-o", "table").out
    assert "[red]value" in shown
    assert "partition" in shown


def test_tail_shows_a_table_row_by_row(penstock, topic, environment) -> None:
    penstock("produce", topic, "-p", "0", stdin="a\n")
    tail = subprocess.Popen(
        [sys.executable, "-m", "penstock", "tail", topic, "--last", "1", "-o", "table"],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert tail.stdout is not None
    try:
        assert [tail.stdout.readline().split() for _ in range(3)][2][-1] == "a"
        penstock("produce", topic, "-p", "0", stdin="b\n")
        assert tail.stdout.readline().split()[-1] == "b"
    finally:
        tail.send_signal(signal.SIGINT)
        rest, _ = tail.communicate(timeout=60)
    assert (tail.returncode, rest) == (130, "")


def test_a_wait_ends_with_the_records_that_were_waited_for(penstock, topic, environment) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "penstock", "consume", topic, "-n", "2", "--timeout", "60"],
        stdout=subprocess.PIPE,
        env=environment,
    )
    penstock("produce", topic, stdin="a\nb\n")
    out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, sorted(out.split())) == (0, [b"a", b"b"])


@pytest.mark.parametrize(("output", "ended"), [("text", "a\nb\n"), ("json", None)])
def test_tail_shows_what_comes_until_it_is_interrupted(penstock, topic, environment, output, ended) -> None:
    penstock("produce", topic, "-p", "0", stdin="a\n")
    tail = subprocess.Popen(
        [sys.executable, "-m", "penstock", "tail", topic, "--last", "1", "-o", output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert tail.stdout is not None
    first = tail.stdout.readline() + (tail.stdout.readline() if output == "json" else "")
    penstock("produce", topic, "-p", "0", stdin="b\n")
    second = tail.stdout.readline()
    tail.send_signal(signal.SIGINT)
    rest, error = tail.communicate(timeout=60)
    assert (tail.returncode, error) == (130, "")
    if ended is None:
        import json

        assert [row["value"] for row in json.loads(first + second + rest)] == ["a", "b"]
    else:
        assert first + second + rest == ended


def test_a_reader_that_has_enough_of_a_table_ends_it_quietly(penstock, topic, environment) -> None:
    penstock("produce", topic, "-p", "0", stdin="y\n" * 20_000)
    command = f"{sys.executable} -m penstock consume {topic} -o table | head -n 1; echo rc=${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, env=environment, text=True, timeout=60, check=True
    )
    heading, code = done.stdout.splitlines()
    assert heading.split() == ["partition", "offset", "time", "key", "value", "headers"]
    assert (code, done.stderr) == ("rc=141", "")


def test_a_reader_that_has_enough_ends_it_quietly(penstock, topic, environment) -> None:
    penstock("produce", topic, "-p", "0", stdin="x" * 1000 + "\n" + "y\n" * 200_000)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m penstock consume {topic} | head -c 10; echo rc=${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=environment,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("xxxxxxxxxxrc=141\n", "")


def test_what_is_typed_is_sent_at_once(penstock, topic, environment) -> None:
    typing = subprocess.Popen(
        [sys.executable, "-m", "penstock", "produce", topic, "-p", "0"],
        stdin=subprocess.PIPE,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    assert typing.stdin is not None
    typing.stdin.write(b"now\n")
    typing.stdin.flush()
    assert penstock("consume", topic, "-n", "1", "--timeout", "30").out == "now\n"
    typing.stdin.close()
    assert typing.wait(30) == 0
