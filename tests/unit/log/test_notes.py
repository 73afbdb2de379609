import pytest

from penstock.log.notes import read_note, write_note
from penstock.testing.disk import SimulatedDisk


@pytest.fixture
def disk():
    return SimulatedDisk()


def test_a_note_survives_a_loss_of_power(disk) -> None:
    write_note(disk, "/note", "title", 1, -2, 2**62)
    disk.lose_power()
    assert read_note(disk, "/note", "title", 3) == (1, -2, 2**62)


def test_an_absent_note_is_none(disk) -> None:
    assert read_note(disk, "/note", "title", 1) is None


@pytest.mark.parametrize(
    "damage",
    [b"", b"title 1 00000000 5\n", b"title 1", b"\xff\xfe\xfd", b"other 1 c4b4c8a5 5\n"],
)
def test_a_damaged_note_is_none(disk, damage) -> None:
    disk.write_atomic("/note", damage)
    assert read_note(disk, "/note", "title", 1) is None


def test_a_flipped_digit_is_noticed(disk) -> None:
    write_note(disk, "/note", "title", 15)
    data = disk.read_bytes("/note")
    disk.write_atomic("/note", data.replace(b" 15", b" 16"))
    assert read_note(disk, "/note", "title", 1) is None


def test_a_note_of_another_length_is_none(disk) -> None:
    write_note(disk, "/note", "title", 1, 2)
    assert read_note(disk, "/note", "title", 3) is None
