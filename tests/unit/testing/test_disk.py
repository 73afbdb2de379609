import errno

import pytest

from penstock.testing.disk import SimulatedDisk


@pytest.fixture
def disk():
    disk = SimulatedDisk(seed=1)
    disk.make_dirs("/data")
    return disk


def test_what_was_synced_survives_a_loss_of_power_and_the_rest_does_not(disk) -> None:
    file = disk.open("/data/f", create=True)
    file.pwritev((b"kept",), 0)
    file.sync()
    disk.sync_dir("/data")
    file.pwritev((b" lost",), 4)
    assert file.pread(100, 0) == b"kept lost"
    disk.lose_power(torn=False)
    assert disk.read_bytes("/data/f") == b"kept"


def test_a_name_that_was_not_synced_is_gone_with_its_synced_bytes(disk) -> None:
    file = disk.open("/data/f", create=True)
    file.pwritev((b"bytes",), 0)
    file.sync()
    disk.lose_power(torn=False)
    assert not disk.exists("/data/f")


def test_a_directory_whose_name_was_not_synced_is_gone_with_all_in_it(disk) -> None:
    disk.make_dirs("/data/a/b", sync=False)
    disk.write_atomic("/data/a/b/f", b"x")
    disk.sync_dir("/data/a")
    disk.lose_power(torn=False)
    assert disk.listdir("/data") == []
    assert not disk.exists("/data/a/b/f")


def test_renames_and_removals_that_were_not_synced_are_undone(disk) -> None:
    disk.write_atomic("/data/one", b"1")
    disk.write_atomic("/data/two", b"2")
    disk.rename("/data/one", "/data/two")
    disk.remove("/data/two")
    assert disk.listdir("/data") == []
    disk.lose_power(torn=False)
    assert disk.read_bytes("/data/one") == b"1"
    assert disk.read_bytes("/data/two") == b"2"


def test_a_renamed_directory_comes_back_under_its_old_name(disk) -> None:
    disk.make_dirs("/data/old")
    disk.write_atomic("/data/old/f", b"x")
    disk.rename("/data/old", "/data/new")
    assert disk.read_bytes("/data/new/f") == b"x"
    assert not disk.exists("/data/old")
    disk.lose_power(torn=False)
    assert disk.read_bytes("/data/old/f") == b"x"
    assert not disk.exists("/data/new")


def test_torn_writes_leave_some_part_of_what_was_not_synced() -> None:
    seen = set()
    for seed in range(200):
        disk = SimulatedDisk(seed)
        file = disk.open("/f", create=True)
        file.pwritev((b"AA",), 0)
        file.sync()
        disk.sync_dir("/")
        file.pwritev((b"bb",), 2)
        file.pwritev((b"cc",), 4)
        disk.lose_power()
        seen.add(disk.read_bytes("/f"))
    assert all(content.startswith(b"AA") for content in seen)
    assert {b"AA", b"AAbb", b"AAbbcc", b"AAb", b"AAbbc", b"AAbb\0\0"} <= seen
    assert not any(content[2:4] == b"\0\0" and len(content) > 4 for content in seen)


def test_a_run_repeats_from_its_seed() -> None:
    def run(seed):
        disk = SimulatedDisk(seed)
        file = disk.open("/f", create=True)
        disk.sync_dir("/")
        file.pwritev((b"x" * 1000,), 0)
        disk.lose_power()
        return disk.read_bytes("/f")

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert len({run(seed) for seed in range(20)}) > 1


def test_an_unsynced_atomic_write_may_be_broken_by_a_loss_of_power() -> None:
    seen = set()
    for seed in range(100):
        disk = SimulatedDisk(seed)
        disk.write_atomic("/f", b"old")
        disk.write_atomic("/f", b"new", sync=False)
        assert disk.read_bytes("/f") == b"new"
        disk.lose_power()
        seen.add(disk.read_bytes("/f"))
    assert {b"old", b"new", b""} <= seen


def test_files_from_before_the_end_of_the_process_are_dead(disk) -> None:
    file = disk.open("/data/f", create=True)
    file.pwritev((b"stays",), 0)
    disk.end_process()
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)
    assert disk.read_bytes("/data/f") == b"stays"
    assert disk.open_files == 0


def test_open_files_are_counted(disk) -> None:
    first, second = disk.open("/data/f", create=True), disk.open("/data/f")
    assert disk.open_files == 2
    first.close()
    first.close()
    second.close()
    assert disk.open_files == 0


def test_a_full_disk_takes_a_part_and_then_refuses(disk) -> None:
    file = disk.open("/data/f", create=True)
    disk.capacity_bytes = 10
    file.pwritev((b"x" * 8,), 0)
    with pytest.raises(OSError, match="space") as error:
        file.pwritev((b"yyyy",), 8)
    assert error.value.errno == errno.ENOSPC
    assert file.size() == 10
    file.pwritev((b"z" * 10,), 0)
    with pytest.raises(OSError, match="space"):
        disk.write_atomic("/data/g", b"1")
    file.truncate(0)
    disk.write_atomic("/data/g", b"1")
    assert disk.free_bytes("/") == 9


def test_a_file_limit_refuses_larger_files(disk) -> None:
    disk.file_bytes_max = 4
    file = disk.open("/data/f", create=True)
    with pytest.raises(OSError, match="large") as error:
        file.pwritev((b"12345",), 0)
    assert error.value.errno == errno.EFBIG
    assert file.size() == 4


def test_ordered_faults_meet_the_next_calls(disk) -> None:
    file = disk.open("/data/f", create=True)
    disk.fail_next("sync", errno.EIO, count=2)
    for _ in range(2):
        with pytest.raises(OSError, match="error"):
            file.sync()
    file.sync()
    disk.fail_next("rename", errno.EACCES)
    disk.clear_faults()
    disk.rename("/data/f", "/data/g")


def test_missing_names_are_errors_where_a_real_disk_has_them(disk) -> None:
    for call in (
        lambda: disk.open("/data/f"),
        lambda: disk.read_bytes("/data/f"),
        lambda: disk.size("/data/f"),
        lambda: disk.rename("/data/f", "/data/g"),
        lambda: disk.open("/nowhere/f", create=True),
        lambda: disk.sync_dir("/nowhere"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert disk.listdir("/nowhere") == []
    disk.remove("/data/f")
    disk.remove_tree("/nowhere")
    with pytest.raises(IsADirectoryError):
        disk.open("/data")


def test_everything_can_be_synced_at_once(disk) -> None:
    disk.make_dirs("/data/a", sync=False)
    disk.open("/data/a/f", create=True).pwritev((b"x",), 0)
    disk.fail_next("sync_all")
    assert not disk.sync_all("/data")
    assert not disk.sync_all("/absent")
    assert disk.sync_all("/data")
    disk.lose_power(torn=False)
    assert disk.read_bytes("/data/a/f") == b"x"


def test_a_removed_tree_is_gone(disk) -> None:
    disk.make_dirs("/data/a/b")
    disk.write_atomic("/data/a/b/f", b"x")
    disk.remove_tree("/data/a")
    assert disk.listdir("/data") == []
    assert not disk.exists("/data/a/b")
    assert disk.make_dirs("/data/a/b") == ["/data", "/data/a"]
    assert disk.listdir("/data/a/b") == []


def test_damage_done_behind_the_back_is_durable(disk) -> None:
    disk.write_atomic("/data/f", b"abc")
    disk.change("/data/f", lambda data: data.__setitem__(1, 0))
    disk.lose_power()
    assert disk.read_bytes("/data/f") == b"a\0c"
