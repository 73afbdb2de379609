"""What the tests of pipelines have in common: a pipeline run in the warm session, with a state folder of its own."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from penstock.spark.pipelines.builtin import builtin_named
from penstock.spark.pipelines.loading import loads
from penstock.spark.pipelines.registry import Registry
from penstock.spark.pipelines.run import Execution, RunSettings, run_file
from penstock.spark.pipelines.values import Trigger
from tests.spark.sinking import seen_in


class Nothing:
    """Progress that nobody watches."""

    def advance(self, amount=1, note="") -> None:
        pass


@dataclass
class Kept:
    """A screen that keeps what it is shown."""

    notes: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    shown: list = field(default_factory=list)

    def show(self, run) -> None:
        self.shown.append(run)

    def clear(self) -> None:
        pass

    def progress(self, what, total):
        return Nothing()

    def emit(self, rows, columns, nothing) -> None:
        self.rows += rows

    def note(self, text) -> None:
        self.notes.append(text)

    def confirm(self, question) -> bool:
        return True


class Pipelines:
    """Runs pipelines to the end of what is there."""

    def __init__(self, spark, bootstrap, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.registry = Registry(folder / "state")
        self.screen = Kept()

    def run(self, text: str, **more):
        """A file, once."""
        pipeline = loads(text, self.folder / "test.toml", {})
        return self._execute(pipeline.head.name, lambda execution: run_file(pipeline, execution), **more)

    def builtin(self, kind: str, name: str, **arguments):
        """A built-in, once."""
        builtin = builtin_named(kind)
        return self._execute(name, lambda execution: builtin.run(builtin.arguments(**arguments), execution))

    def _execute(self, name, work, **more):
        settings = RunSettings(name=name, kind="steps", bootstrap=self.bootstrap, trigger=Trigger(once=True), **more)
        return Execution(settings, self.registry, self.screen, lambda _: self.spark).execute(work)

    def json_in(self, topic):
        """Every value of a topic, read as JSON."""
        return [json.loads(seen.value) for seen in seen_in(self.bootstrap, topic)]
