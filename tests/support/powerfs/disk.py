"""A mounted file system for a test: cut its power, bring it back, and look at what survived."""

import os
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.mounts import NotAllowed

SECONDS_MAX: Final = 60.0
REPOSITORY: Final = Path(__file__).resolve().parents[3]


class PowerDisk:
    """One mount at ``path``, served by a process of its own. ``close`` leaves neither mount nor process."""

    def __init__(self, folder: Path, name: str = "disk") -> None:
        _check()
        self.path = folder / name
        self.path.mkdir()
        self._image = folder / f"{name}.image"
        self._log = folder / f"{name}.powerfs.stderr"
        self._server: subprocess.Popen[bytes] | None = None
        self.power_back()

    def cut_power(self, seed: int, kind: str = "any", count: int = 0, seconds: float = 0.5) -> None:
        """Cut the power at the ``count``th operation from now of a ``kind`` (any, sync, names), and return when it is cut.

        With 0 it is cut at once, and after ``seconds`` if there are not so many operations. Programs that use the disk get EIO
        for everything from then on.
        """
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write(f"cut {seed} {kind} {count} {seconds}\n".encode())
        self._server.stdin.flush()
        answer = self._read_line()
        assert answer == "cut", self._trouble(answer)

    def power_back(self) -> None:
        """Mount what survived. Whoever had files open on the disk must be gone."""
        self.close()
        command = [sys.executable, "-m", "tests.support.powerfs.server", str(self._image), str(self.path)]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=REPOSITORY
            )
        try:
            answer = self._read_line()
        except BaseException:
            self.close()
            raise
        if answer != "mounted":
            self.close()
            raise NotAllowed(self._trouble(answer))

    def close(self) -> None:
        """Unmount, in order unless the power is cut: what was written is there at the next :meth:`power_back`."""
        server, self._server = self._server, None
        if server is None:
            return
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        try:
            server.wait(SECONDS_MAX)
        finally:
            server.kill()
            server.wait(SECONDS_MAX)
            server.stdout.close()
            subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True, timeout=SECONDS_MAX)

    def _read_line(self) -> str:
        assert self._server is not None
        assert self._server.stdout is not None
        out = self._server.stdout.fileno()
        deadline = time.monotonic() + SECONDS_MAX
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(self._trouble("no answer in a minute"))
                piece = os.read(out, 4096)
                if not piece:
                    break
                text += piece
        return text.decode().strip()

    def _trouble(self, answer: str) -> str:
        return f"the file system in {self.path} failed: {answer or 'it ended'}\n{self._log.read_text()[-2000:]}"


def _check() -> None:
    if sys.platform != "linux":
        raise NotAllowed("FUSE is used on Linux alone")
    if os.geteuid() != 0:
        raise NotAllowed("mounting needs root")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NotAllowed("/dev/fuse is absent or not accessible")
    if shutil.which("umount") is None:
        raise NotAllowed("not installed: umount")
    try:
        import mfusepy
    except (ImportError, OSError) as error:
        raise NotAllowed(f"no FUSE for Python: {error}; install fuse3 and the development dependencies") from error
    if mfusepy.fuse_version_major != 3:
        raise NotAllowed("libfuse3 is not installed; install fuse3")
