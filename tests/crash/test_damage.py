"""Damage to records themselves: the broker starts, says what it cut, serves all that is whole, and goes on."""

import subprocess
import sys

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.crash.damage import HEAD_BYTES, content, flip_bit, partition_dirs, segments
from tests.crash.load import read_all
from tests.support.clients import CONSUMERS, PRODUCERS, Record
from tests.support.encrypted import ENCRYPTS
from tests.support.waiting import eventually

TOPIC = "damaged"
BATCHES = 20


def produce_batches(bootstrap: str, first: int, count: int) -> None:
    """One record a batch, so that a test knows where a batch begins."""
    for number in range(first, first + count):
        PRODUCERS["confluent"](bootstrap, TOPIC, [Record(b"%d" % number)])


def the_partition(broker):
    (folder,) = [
        folder for folder in partition_dirs(broker.data_dir) if any(s.stat().st_size for s in segments(folder))
    ]
    return folder


def batch_positions(data: bytes) -> list[int]:
    positions, at = [], 0
    while at + 12 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "big")
        if length == 0:
            break
        positions.append(at)
        at += 12 + length
    return positions


def test_a_flipped_bit_in_the_active_segment_costs_the_batches_behind_it_and_no_more(start_broker) -> None:
    broker = start_broker()
    produce_batches(broker.bootstrap, 0, BATCHES)
    broker.kill()
    active = segments(the_partition(broker))[-1]
    positions = batch_positions(content(active))
    assert len(positions) == BATCHES
    flip_bit(active, HEAD_BYTES + positions[15] + 65)
    (broker.data_dir / "recovery.checkpoint").unlink(missing_ok=True)

    broker.start()

    assert read_all(broker.bootstrap, TOPIC, 0) == list(range(15))
    assert "truncated" in broker.log_text(), "the log should say what was truncated"
    produce_batches(broker.bootstrap, 100, 3)
    assert read_all(broker.bootstrap, TOPIC, 0) == [*range(15), 100, 101, 102]


@pytest.mark.parametrize("keep_bytes", [1, 11, 12, 60, 61, 66])
def test_a_torn_last_batch_is_cut_at_every_kind_of_place(start_broker, keep_bytes) -> None:
    broker = start_broker()
    produce_batches(broker.bootstrap, 0, 5)
    broker.kill()
    active = segments(the_partition(broker))[-1]
    data = active.read_bytes()
    last = HEAD_BYTES + batch_positions(content(active))[-1]
    active.write_bytes(data[: last + keep_bytes])
    broker.start()
    assert read_all(broker.bootstrap, TOPIC, 0) == list(range(4))


@pytest.fixture
def with_closed_segments(start_broker):
    """A broker that is stopped, whose topic has several closed segments."""
    broker = start_broker({"topic_defaults.segment.bytes": 1000})
    for number in range(60):
        PRODUCERS["confluent"](broker.bootstrap, TOPIC, [Record(b"%d" % number)])
    assert len(segments(the_partition(broker))) > 3
    assert broker.stop() == 0
    return broker


def test_a_flipped_bit_in_a_closed_segment_is_an_error_for_that_range_alone(with_closed_segments) -> None:
    broker = with_closed_segments
    second = segments(the_partition(broker))[1]
    first_offset = int(second.stem)
    positions = batch_positions(content(second))
    flip_bit(second, HEAD_BYTES + positions[2] + 65)
    # A closed encrypted segment is checked in larger chunks than a batch.
    broken = first_offset if ENCRYPTS else first_offset + 2
    following = int(segments(the_partition(broker))[2].stem)

    broker.start()

    before = CONSUMERS["confluent"](broker.bootstrap, TOPIC, broken)
    assert [r.offset for r in before] == list(range(broken))
    after = CONSUMERS["confluent"](broker.bootstrap, TOPIC, 60 - following, offset=following)
    assert [r.offset for r in after] == list(range(following, 60))

    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, broken)])
    message = consumer.poll(3)
    if message is not None:
        assert message.error() is not None, "a damaged record was handed out"
    consumer.close()
    assert broker.running


def test_zeros_in_the_time_index_do_not_make_records_old(with_closed_segments) -> None:
    """Retention goes by the time index; zeros in it, as a loss of power leaves them, would be the year 1970."""
    broker = with_closed_segments
    for path in the_partition(broker).glob("*index"):
        path.write_bytes(bytes(max(12, path.stat().st_size)))
    (broker.data_dir / "recovery.checkpoint").unlink(missing_ok=True)
    broker.start()
    assert read_all(broker.bootstrap, TOPIC, 0) == list(range(60))

    # When retention has emptied this topic, it has looked at the other one too.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("old", 1, 1, config={"retention.ms": "1"})])["old"].result(20)
    PRODUCERS["confluent"](broker.bootstrap, "old", [Record(b"old")])
    where = confluent_kafka.TopicPartition("old", 0)
    eventually(
        lambda: admin.list_offsets({where: OffsetSpec.earliest()})[where].result(20).offset > 0, what="retention"
    )

    assert read_all(broker.bootstrap, TOPIC, 0) == list(range(60))


def test_verify_finds_what_is_damaged_and_nothing_else(with_closed_segments) -> None:
    broker = with_closed_segments
    command = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())"]

    def verify() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "log", "verify", "--data-dir", str(broker.data_dir)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    whole = verify()
    assert whole.returncode == 0, whole.stdout + whole.stderr
    second = segments(the_partition(broker))[1]
    flip_bit(second, HEAD_BYTES + batch_positions(content(second))[2] + 65)
    damaged = verify()
    assert damaged.returncode != 0
    assert second.name in damaged.stdout + damaged.stderr
