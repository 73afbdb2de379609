import errno
from uuid import UUID

import pytest

from penstock.errors import PenstockError
from penstock.log.config import LogConfig
from penstock.log.manager import LogManager
from penstock.log.names import CUT
from penstock.records.batch import read_header
from penstock.runtime.disk import RealDisk
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import FakeClock, append, fill, make_batch, read_all

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, segment_ms=-1)
TOPIC = UUID(int=1)
OTHER = UUID(int=2)


class Node:
    """A node's logs over several lives of its process."""

    def __init__(self, disk, data_dir) -> None:
        self.disk = disk
        self.data_dir = data_dir
        self.clock = FakeClock()
        self.reports = []
        self.scanned = []
        self.start()

    def start(self) -> None:
        self.reports.clear()
        self.logs = LogManager(self.disk, self.data_dir, self.clock, self.reports.append, open_segments_max=20)
        self.logs.open_all()

    def log(self, topic=TOPIC, partition=0):
        return self.logs.log(topic, partition, CONFIG)

    def kill(self) -> None:
        if isinstance(self.disk, SimulatedDisk):
            self.disk.end_process()
        self.start()

    def folder(self, topic=TOPIC, partition=0) -> str:
        return f"{self.data_dir}/topics/{topic.hex}/{partition}"


@pytest.fixture
def node():
    disk = SimulatedDisk(seed=3)
    disk.make_dirs("/data")
    return Node(disk, "/data")


@pytest.fixture
def scanned(monkeypatch):
    """The folders that were scanned by recovery."""
    import penstock.log.manager as manager
    import penstock.log.recovery as recovery

    found = []
    real = recovery.recover

    def note(world, directory, interval_bytes, point, **more):
        found.append(directory)
        return real(world, directory, interval_bytes, point, **more)

    monkeypatch.setattr(manager, "recover", note)
    monkeypatch.setattr(recovery, "recover", note)
    return found


def count(log):
    return len(read_all(log))


def test_a_log_is_opened_once_and_lies_in_its_own_folder(node) -> None:
    log = node.log(partition=3)
    assert node.log(partition=3) is log
    assert node.log(OTHER, 3) is not log
    fill(log, 2)
    assert node.disk.listdir(node.folder(partition=3))[0] == "00000000000000000000.log"
    assert node.logs.topic_ids() == [TOPIC]


def test_an_orderly_stop_needs_no_scan_and_says_nothing(tmp_path, scanned) -> None:
    node = Node(RealDisk(), str(tmp_path))
    for partition in range(5):
        fill(node.log(partition=partition), 30)
        append(node.log(partition=partition), b"gathered")
    node.logs.close()
    node.start()
    for partition in range(5):
        assert count(node.log(partition=partition)) == 31
    assert scanned == []
    assert node.reports == []
    node.logs.close()


def test_after_a_kill_only_the_logs_that_differ_from_the_checkpoint_are_scanned(node, scanned) -> None:
    for partition in range(6):
        fill(node.log(partition=partition), 30)
    node.logs.prepare_checkpoint().run()
    append(node.log(partition=2), b"later")
    node.log(partition=2).write_pending()
    fill(node.log(OTHER), 3)
    node.kill()
    assert scanned == [node.folder(partition=2), node.folder(OTHER)]
    assert [count(node.log(partition=partition)) for partition in range(6)] == [30, 30, 31, 30, 30, 30]
    assert count(node.log(OTHER)) == 3
    assert len(scanned) == 2
    node.kill()
    assert len(scanned) == 2, "what was recovered once is not scanned again"


@pytest.mark.parametrize("at_once", [True, False])
def test_many_recovered_logs_are_durable_whether_or_not_all_can_be_synced_at_once(node, at_once, monkeypatch) -> None:
    monkeypatch.setattr("penstock.log.manager.MANY_LOGS", 4)
    for partition in range(6):
        for number in range(30):
            append(node.log(partition=partition), b"%d" % number)
        node.log(partition=partition).write_pending()
    path = node.log(partition=3).segments[-1].log_path
    node.disk.change(path, lambda data: data.__delitem__(slice(-1, None)))
    if not at_once:
        node.disk.fail_next("sync_all")
    node.kill()
    node.disk.lose_power(torn=False)
    node.start()
    assert [count(node.log(partition=partition)) for partition in range(6)] == [30, 30, 30, 29, 30, 30]


def test_a_node_killed_while_it_recovers_recovers_again(node, scanned) -> None:
    fill(node.log(), 30)
    node.disk.end_process()
    node.disk.fail_next("write_atomic", errno.ENOSPC)
    node.start()
    assert "recovery.checkpoint" in node.reports[-1]
    node.kill()
    assert len(scanned) == 2
    assert count(node.log()) == 30


def test_untouched_logs_keep_their_points_over_several_lives(node, scanned) -> None:
    for partition in range(4):
        fill(node.log(partition=partition), 10)
    node.logs.close()
    for _ in range(3):
        node.start()
        fill(node.log(partition=0), 1)
        node.logs.prepare_checkpoint().run()
        node.kill()
        node.logs.close()
    node.start()
    assert [count(node.log(partition=partition)) for partition in range(4)] == [13, 10, 10, 10]
    assert scanned == []


def test_a_crash_after_a_clean_stop_and_a_start_is_noticed(node, scanned) -> None:
    fill(node.log(), 10)
    node.logs.close()
    node.start()
    append(node.log(), b"x")
    node.log().write_pending()
    node.kill()
    assert scanned == [node.folder()]
    assert count(node.log()) == 11


def test_a_new_log_is_cut_where_its_first_bytes_did_not_arrive_before_the_first_checkpoint(node) -> None:
    log = node.log()
    for number in range(40):
        append(log, b"%d " % number + b"x" * 100)
    log.write_pending()
    closed = log.segments[0]
    assert 5 < closed.next_offset < 40
    start, end = closed.locate(3, closed.size), closed.locate(5, closed.size)
    node.disk.change(closed.log_path, lambda data: data.__setitem__(slice(start, end), b"?" * (end - start)))
    node.kill()
    assert node.log().next_offset == 3


def test_a_damaged_checkpoint_costs_a_scan_and_nothing_else(node, scanned) -> None:
    for partition in range(3):
        fill(node.log(partition=partition), 10)
    node.logs.close()
    node.disk.change("/data/recovery.checkpoint", lambda data: data.__setitem__(40, 0))
    node.start()
    assert len(scanned) == 3
    assert "every log is scanned" in node.reports[0]
    assert [count(node.log(partition=partition)) for partition in range(3)] == [10, 10, 10]


def test_a_long_recovery_says_how_far_it_is(node) -> None:
    for partition in range(4):
        fill(node.log(partition=partition), 5)
    node.disk.end_process()

    class Slow(FakeClock):
        def monotonic_ms(self):
            self.ms += 700
            return self.ms

    node.clock = Slow()
    node.start()
    assert [report.split(" logs")[0] for report in node.reports] == ["recovery: 2 of 4", "recovery: 4 of 4"]


def test_snapshots_of_producers_are_written_with_the_checkpoint(node) -> None:
    log = node.log()
    for sequence in range(5):
        batch = make_batch(b"v", producer_id=8, producer_epoch=0, base_sequence=sequence)
        log.append(batch, read_header(batch), 0)
    fill(log, 5)
    node.logs.prepare_checkpoint().run()
    assert f"{10:020d}.snapshot" in node.disk.listdir(node.folder())
    node.kill()
    batch = make_batch(b"v", producer_id=8, producer_epoch=0, base_sequence=4)
    assert node.log().append(batch, read_header(batch), 0) == 4


def test_a_snapshot_written_while_the_log_was_cut_is_taken_back(node) -> None:
    log = node.log()
    batch = make_batch(b"v", producer_id=8, producer_epoch=0, base_sequence=0)
    log.append(batch, read_header(batch), 0)
    fill(log, 5)
    task = node.logs.prepare_checkpoint()
    log.truncate_to(3)
    task.run()
    assert f"{6:020d}.snapshot" in node.disk.listdir(node.folder())
    node.logs.prepare_checkpoint().run()
    assert f"{6:020d}.snapshot" not in node.disk.listdir(node.folder())


def test_the_note_of_a_cut_goes_only_after_a_checkpoint_that_knows_of_it(node) -> None:
    fill(node.log(), 10)
    before = node.logs.prepare_checkpoint()
    node.log().truncate_to(5)
    before.run()
    knowing = node.logs.prepare_checkpoint()
    assert CUT in node.disk.listdir(node.folder())
    knowing.run()
    assert CUT in node.disk.listdir(node.folder())
    node.logs.prepare_checkpoint()
    assert CUT not in node.disk.listdir(node.folder())
    node.log().truncate_to(2)
    node.logs.close()
    assert CUT not in node.disk.listdir(node.folder())
    node.start()
    assert count(node.log()) == 2


def test_the_lowest_cut_since_a_checkpoint_is_the_one_that_recovery_heeds(node) -> None:
    fill(node.log(), 10)
    node.logs.prepare_checkpoint().run()
    node.log().truncate_to(3)
    # Other batches than those that the checkpoint knew, of other sizes.
    for _ in range(20):
        batch = make_batch(b"longer than before")
        node.log().append(batch, read_header(batch), 1)
    node.log().write_pending()
    node.log().truncate_to(18)
    node.kill()
    assert node.reports == []
    assert count(node.log()) == 18


def test_a_note_of_a_cut_that_cannot_be_read_has_the_whole_log_scanned(node) -> None:
    fill(node.log(), 10)
    node.logs.prepare_checkpoint().run()
    node.log().truncate_to(3)
    for _ in range(20):
        batch = make_batch(b"longer than before")
        node.log().append(batch, read_header(batch), 1)
    node.log().write_pending()
    node.disk.change(f"{node.folder()}/{CUT}", lambda data: data.__setitem__(-2, 0))
    node.log().truncate_to(18)
    node.kill()
    assert node.reports == []
    assert count(node.log()) == 18


def test_a_checkpoint_that_could_not_be_written_changes_nothing(node, scanned) -> None:
    fill(node.log(), 10)
    node.logs.prepare_checkpoint().run()
    task = node.logs.prepare_checkpoint()
    node.disk.fail_next("write_atomic", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        task.run()
    node.kill()
    assert scanned == []


def test_a_forgotten_topic_is_put_aside_at_once_and_removed_by_the_task(node) -> None:
    fill(node.log(TOPIC, 0), 5)
    fill(node.log(TOPIC, 1), 5)
    fill(node.log(OTHER), 5)
    old = node.log(TOPIC, 0)
    task = node.logs.forget(TOPIC)
    with pytest.raises(PenstockError):
        append(old, b"x")
    assert node.logs.topic_ids() == [OTHER]
    assert node.log(TOPIC, 0).next_offset == 0
    task.run()
    assert node.disk.listdir("/data/topics") == [OTHER.hex]
    node.logs.forget(OTHER).run()
    node.logs.forget(OTHER).run()
    assert node.disk.listdir("/data/topics") == []


def test_what_is_left_of_a_removal_is_found_at_the_next_start(node) -> None:
    fill(node.log(), 5)
    node.logs.forget(TOPIC)
    node.kill()
    assert node.logs.topic_ids() == []
    node.logs.leftovers().run()
    assert node.disk.listdir("/data/topics") == []


def test_the_points_of_a_removed_topic_are_forgotten_after_a_crash(node) -> None:
    fill(node.log(), 5)
    fill(node.log(OTHER), 5)
    node.logs.prepare_checkpoint().run()
    node.logs.forget(TOPIC)
    node.kill()
    node.logs.prepare_checkpoint().run()
    checkpoint = node.disk.read_bytes("/data/recovery.checkpoint").decode()
    assert OTHER.hex in checkpoint
    assert TOPIC.hex not in checkpoint


def test_a_log_that_cannot_be_closed_denies_the_orderly_stop_but_not_the_others(node, scanned) -> None:
    fill(node.log(TOPIC), 5)
    fill(node.log(OTHER), 5)
    append(node.log(TOPIC), b"unsynced")
    node.disk.fail_next("sync", errno.EIO)
    node.logs.close()
    assert any("could not be closed" in report for report in node.reports)
    node.start()
    assert scanned == [node.folder(TOPIC)]
    assert count(node.log(OTHER)) == 5


def test_descriptors_are_bounded_over_all_logs(node) -> None:
    for partition in range(60):
        fill(node.log(partition=partition), 20)
    assert node.disk.open_files <= 20
    for partition in range(60):
        assert count(node.log(partition=partition)) == 20
    assert node.disk.open_files <= 20


def test_an_untouched_log_holds_no_descriptor(node) -> None:
    for partition in range(10):
        fill(node.log(partition=partition), 20)
    node.logs.close()
    assert node.disk.open_files == 0
    node.start()
    assert node.disk.open_files == 0
    node.kill()
    assert node.disk.open_files == 0


def test_with_a_full_disk_the_node_starts_and_reads(node) -> None:
    fill(node.log(), 30)
    node.logs.close()
    node.disk.capacity_bytes = 0
    node.start()
    assert count(node.log()) == 30
    append(node.log(), b"x")
    with pytest.raises(PenstockError):
        node.log().write_pending()
    assert count(node.log()) == 30


def test_strange_names_in_the_data_folder_are_left_alone(node) -> None:
    fill(node.log(), 3)
    node.disk.make_dirs("/data/topics/lost+found/0")
    node.disk.make_dirs(f"/data/topics/{TOPIC.hex}/notes")
    node.kill()
    assert node.logs.topic_ids() == [TOPIC]
    assert count(node.log()) == 3


def test_a_topic_deleted_under_a_checkpoint_does_not_keep_it_from_the_others(tmp_path, scanned) -> None:
    node = Node(RealDisk(), str(tmp_path))
    for topic in (OTHER, TOPIC):
        append(node.log(topic), b"v", producer_id=1, producer_epoch=0, base_sequence=0)
        fill(node.log(topic), 1)
    task = node.logs.prepare_checkpoint()
    node.logs.forget(OTHER).run()
    task.run()
    assert task.done
    node.kill()
    assert scanned == []
    assert [producer.last_sequence for producer in node.log().producers.active()] == [0]
