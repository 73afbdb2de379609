"""The user's cache: small files that can be made again, such as what starts Java and what is sent to executors.

Programs are started from there, so no other user may write to it. If the home folder is not writable, the cache is a private folder
among the temporary files.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """The folder, created if it does not exist."""
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


def made_once(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache. ``fill`` makes it in another place first, so it is complete or missing, and processes may race for it."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        fill(temporary)
        temporary.rename(folder)
    except OSError:
        # Another process may have been faster.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _is_ours_alone(folder: Path) -> bool:
    status = folder.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return ours and os.access(folder, os.W_OK | os.X_OK)
