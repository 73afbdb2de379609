"""The registry of pipelines that run or ran: one JSON file per pipeline in the state folder.

On disk, in ``$PENSTOCK_STATE_DIR`` or ``$XDG_DATA_HOME/penstock/pipelines`` (``~/.local/share``)::

    NAME.json     the last run: its process, its state, its numbers; replaced atomically
    NAME.lock     locked by the process that runs it, until the process ends in any way
    NAME.log      the output of a detached run
    checkpoints/NAME/SINK/    Spark's, unless the pipeline sets another place

A run that was killed cannot record that. A reader finds that its process no longer exists, and shows the run as failed. A process is
identified by its pid and its start time, because a pid may be reused.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from penstock.spark.pipelines.errors import PipelineError, PipelineNotFoundError
from penstock.spark.pipelines.process import lives


class PipelineState(StrEnum):
    """The state of a run."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


ALIVE = (PipelineState.STARTING, PipelineState.RUNNING, PipelineState.STOPPING)


class QueryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One query of a pipeline: the numbers of its last batch."""

    name: str
    query_id: str
    batch_id: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    batch_rows: int = 0
    batch_ms: int = 0
    lag: int | None = None
    batch_at_ms: int | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a pipeline."""

    name: str
    kind: str
    pid: int
    birth: str
    state: PipelineState
    file: str = ""
    description: str = ""
    master: str = ""
    checkpoint: str = ""
    log: str = ""
    reason: str = ""
    started_at_ms: int = 0
    updated_at_ms: int = 0
    ended_at_ms: int | None = None
    done: int = 0
    """The number of records so far, of a pipeline that ends by itself."""
    queries: list[QueryStatus] = []

    @property
    def rows(self) -> int:
        """Rows that this run has read: of several queries, the maximum."""
        return max((query.rows for query in self.queries), default=self.done)

    @property
    def rows_per_second(self) -> float:
        """In the last batches."""
        return max((query.rows_per_second for query in self.queries), default=0.0)

    @property
    def lag(self) -> int | None:
        """The largest lag of its queries."""
        return max((query.lag for query in self.queries if query.lag is not None), default=None)

    @property
    def last_batch(self) -> int | None:
        """The last batch that all queries have done."""
        found = [query.batch_id for query in self.queries]
        return None if not found or None in found else min(each for each in found if each is not None)


def state_folder(given: str | None, environment: Mapping[str, str]) -> Path:
    """The folder of the registry."""
    chosen = given or environment.get("PENSTOCK_STATE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser().absolute() / "penstock" / "pipelines"


class Registry:
    """The state folder, which the first run creates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, run: Run) -> None:
        """Store a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{run.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
            os.replace(temporary, self._file(run.name))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def load(self, name: str) -> Run:
        """The last run, with its current state."""
        try:
            return self._current(self._read(self._file(name)))
        except FileNotFoundError:
            known = [run.name for run in self.all()]
            names = f"; existing pipelines: {', '.join(known)}" if known else ""
            raise PipelineNotFoundError(f"Pipeline {name} does not exist in {self.folder}{names}") from None

    def all(self) -> list[Run]:
        """The last run of each pipeline, by name."""
        runs = []
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            try:
                runs.append(self._current(self._read(path)))
            except FileNotFoundError:
                continue  # removed in the meantime
            except PipelineError as error:
                # One damaged file must not hide the others.
                runs.append(
                    Run(name=path.stem, kind="unknown", pid=0, birth="", state=PipelineState.FAILED, reason=str(error))
                )
        return runs

    def forget(self, name: str) -> None:
        """Remove the run, but not its checkpoint."""
        run = self.load(name)
        if run.state in ALIVE:
            raise PipelineError(f"Pipeline {name} is running (pid {run.pid}); run penstock pipeline stop {name} first")
        # A run that is starting has its lock already, but is not stored yet.
        with self.running(name):
            for suffix in (".json", ".log", ".lock"):
                (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def checkpoint(self, name: str) -> Path:
        """The default folder of its checkpoints."""
        return self.folder / "checkpoints" / name

    def continued_file(self, name: str, file: str, checkpoint: str) -> str | None:
        """The other file from whose checkpoint a run of ``file`` with this name continues; None if there is none."""
        try:
            last = self.load(name)
        except PipelineError:
            # Nothing is known of an earlier run.
            return None
        if not last.file or last.state in ALIVE or last.checkpoint != checkpoint:
            return None
        is_begun = "://" in checkpoint or Path(checkpoint).exists()
        return last.file if is_begun and os.path.realpath(last.file) != os.path.realpath(file) else None

    def log(self, name: str) -> Path:
        """The output of Spark, and of a detached run."""
        return self.folder / f"{name}.log"

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Hold the lock of a name while its pipeline runs; refuse if another process holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.lock"
        # Spark's processes do not inherit it, and the system releases it when this process ends.
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(self._taken(name)) from None
            if not _is_there(path, lock.fileno()):
                raise PipelineError(f"Pipeline {name} was removed just now; run it again")
            yield

    def _taken(self, name: str) -> str:
        try:
            who = f" (pid {self._read(self._file(name)).pid})"
        except (FileNotFoundError, PipelineError):
            who = ""
        return f"Pipeline {name} is already running{who}; run penstock pipeline stop {name} first, or use --name OTHER for this one"

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read(self, path: Path) -> Run:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Run)
        except msgspec.DecodeError as error:
            raise PipelineError(f"{path} is damaged ({error}); delete it, or move it to another folder") from error

    def _current(self, run: Run) -> Run:
        if run.state not in ALIVE or lives(run.pid, run.birth):
            return run
        reason = f"its process (pid {run.pid}) was killed or crashed"
        return msgspec.structs.replace(
            run, state=PipelineState.FAILED, reason=f"{reason}; run it again to continue from its checkpoint"
        )


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one with this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def now_ms() -> int:
    """The wall clock."""
    return int(time.time() * 1000)
