import pytest

from penstock.runtime.disk import RealDisk
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import Kit


@pytest.fixture
def kit():
    """A log's folder on a disk in memory, whose faults a test orders."""
    disk = SimulatedDisk(seed=11)
    disk.make_dirs("/data")
    return Kit(disk, "/data/0")


@pytest.fixture(params=["simulated", "real"])
def either_kit(request, tmp_path):
    """The same on both disks: what holds for one must hold for the other."""
    if request.param == "real":
        return Kit(RealDisk(), str(tmp_path / "0"))
    disk = SimulatedDisk(seed=11)
    disk.make_dirs("/data")
    return Kit(disk, "/data/0")
