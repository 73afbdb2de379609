"""What logs need of the node that keeps them."""

from dataclasses import dataclass, field

from penstock.log.files import FilePool
from penstock.ports import Clock, Disk, Report


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """What opening a log needs, whichever log it is."""

    disk: Disk
    files: FilePool
    clock: Clock
    report: Report
    synced_dirs: set[str] = field(default_factory=set)
    """Folders above the logs whose names recovery has made durable already."""
    has_checkpoint: bool = False
    """Whether a checkpoint was read: then what is beyond a log's point, or has none, may never have been synced."""
