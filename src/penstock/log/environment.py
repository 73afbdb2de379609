"""What all logs of a node share."""

from dataclasses import dataclass, field

from penstock.log.files import FilePool
from penstock.ports import Clock, Disk, Report


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """What opening any log needs."""

    disk: Disk
    files: FilePool
    clock: Clock
    report: Report
    synced_dirs: set[str] = field(default_factory=set)
    """Directories above the logs whose names recovery has already made durable."""
    has_checkpoint: bool = False
    """Whether a checkpoint was read: then what is after a log's point, or has none, may never have been synced."""
