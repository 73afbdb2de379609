"""``penstock pipeline run orders.toml`` as a separate process, which is restarted if it fails and continues from its checkpoint."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("orders.toml")
STARTS_MAX: Final = 3
STOP_SECONDS_MAX: Final = 60.0


class PipelineFailed(RuntimeError):
    """It failed too often; the text is the end of its log."""


class Pipeline:
    """The pipeline on the demo's broker. It writes everything to one folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.lake: Final = folder / "lake"
        self._log = folder / "pipeline.log"
        self._folder = folder
        self._command = [sys.executable, "-m", "penstock", "pipeline", "run", str(FILE), "--bootstrap", bootstrap]
        self._command += ["--state-dir", str(folder / "state"), "--set", f"sinks.1.path={self.lake}"]
        self._command += ["--master", "local[2]"]
        for setting in ("shuffle.partitions=2", "streaming.stopTimeout=30s"):
            self._command += ["--conf", f"spark.sql.{setting}"]
        for setting in ("driver.memory=1g", f"local.dir={folder / 'spark'}"):
            self._command += ["--conf", f"spark.{setting}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self) -> None:
        """Start it; Spark needs a few seconds to start."""
        self._starts += 1
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C is for the demo, which then ends this one by itself.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def keep_running(self) -> str | None:
        """Restart it if it has failed, and return the reason; None if it is running."""
        if self._process is None or self._process.poll() is None:
            return None
        lines = self._log.read_text(errors="replace").strip().splitlines()
        if self._starts >= STARTS_MAX:
            raise PipelineFailed("\n".join(["the pipeline failed; the end of its log:", *lines[-20:]]))
        self.start()
        return lines[-1] if lines else "no reason was given"

    def stop(self) -> None:
        """Send SIGTERM, so that the current batch is finished; if that takes too long, kill everything that it started."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
