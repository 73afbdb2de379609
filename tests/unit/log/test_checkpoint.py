from uuid import UUID

import pytest

from penstock.log.checkpoint import Checkpoint, LogKey, RecoveryPoint, load_checkpoint, save_checkpoint
from penstock.testing.disk import SimulatedDisk

PATH = "/recovery.checkpoint"
POINTS = {
    LogKey(UUID(int=3), 0): RecoveryPoint(0, 10, 500, -1),
    LogKey(UUID(int=2**127), 41): RecoveryPoint(2**40, 2**40 + 7, 2**31 - 1, 2**40),
}


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("points", [{}, POINTS])
def test_a_checkpoint_survives_a_loss_of_power(disk, clean, points) -> None:
    save_checkpoint(disk, PATH, Checkpoint(points, clean))
    disk.lose_power()
    assert load_checkpoint(disk, PATH) == Checkpoint(points, clean)


def test_without_a_file_nothing_is_known(disk) -> None:
    assert load_checkpoint(disk, PATH) == Checkpoint({}, clean=False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.clear(),
        lambda data: data.__setitem__(0, 0),
        lambda data: data.__setitem__(-2, ord("9")),
        lambda data: data.__delitem__(slice(-5, None)),
        lambda data: data.__setitem__(slice(22, 27), b"dirty"),
    ],
)
def test_damage_is_noticed(disk, damage) -> None:
    save_checkpoint(disk, PATH, Checkpoint(POINTS, clean=True))
    disk.change(PATH, damage)
    with pytest.raises(ValueError, match="check"):
        load_checkpoint(disk, PATH)
