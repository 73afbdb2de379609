"""Where this user's small files that can be made again lie: what starts Java, what is sent to executors.

Programs are started from there, so nobody else may write to it. Where the home cannot be written to, it is a folder of
the user's own beside other temporary files.
"""

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """The folder, made when it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    candidates = (Path(base) / "penstock", Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}")
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if _is_ours_alone(folder):
            return folder
    raise OSError(
        f"Neither {candidates[0]} nor {candidates[1]} is writable by you and only by you: set XDG_CACHE_HOME to a folder that you own"
    )


def _is_ours_alone(folder: Path) -> bool:
    status = folder.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return ours and os.access(folder, os.W_OK | os.X_OK)
