"""The ready-made pipelines, and how one of them is declared.

A built-in is a module here with a ``BUILTIN``, named in ``MODULES``::

    class ArchiveArguments(Arguments, frozen=True):
        topics: Annotated[tuple[str, ...], argument("TOPIC...", "The topics to archive.")]
        to: Annotated[str, option("Where the lake is.", metavar="PATH")]
        format: Annotated[LakeFormat, option("The format of the lake.")] = LakeFormat.PARQUET
        source: Annotated[str, option("Read this instead.", flag="--from")] = msgspec.field(name="from", default="")

    def run(arguments: ArchiveArguments, context: Context) -> None: ...

    BUILTIN = Builtin("archive", ArchiveArguments, run, streams=True)

One declaration serves both: ``penstock pipeline archive orders --to ./lake --format parquet`` and, in a file,
``[pipeline] kind = "archive"`` with a table ``[archive]`` whose keys are the fields. A field's flag is its name with dashes; a field
may be ``str``, ``int``, ``float``, ``bool``, a ``StrEnum``, one of these or None, or a tuple of strings (an option that may be given
several times; a list in a file). Fields without a default are required.

What every pipeline has is not declared: ``--bootstrap``, ``--master``, ``--name``, ``--conf``, ``--state-dir``, ``--yes``, ``--output``,
and for those that stream ``--checkpoint``, ``--trigger``, ``--once``, ``--rate``, ``--detach``. All of it is in the :class:`RunContext`.

Modules here are imported for ``--help`` and for checking files, so they import Spark only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import msgspec

from penstock.spark.pipelines.errors import PipelineUsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Listing(msgspec.Struct, frozen=True):
    """A built-in as the list of commands shows it."""

    module: str
    summary: str


MODULES: Final[Mapping[str, Listing]] = {
    "archive": Listing("penstock.spark.pipelines.builtin.archive", "Copy topics to a lake, exactly once."),
    "replay": Listing("penstock.spark.pipelines.builtin.replay", "Copy a range of old records to a topic."),
    "dlq-report": Listing("penstock.spark.pipelines.builtin.dlq_report", "Show dead letters, grouped by reason."),
    "redrive": Listing(
        "penstock.spark.pipelines.builtin.redrive", "Redrive the dead letters that an SQL condition selects."
    ),
    "stats": Listing("penstock.spark.pipelines.builtin.stats", "Compute statistics of topics by time window."),
    "transform": Listing("penstock.spark.pipelines.builtin.transform", "Transform topics with SQL into a topic."),
}
"""In the order of ``--help``."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a built-in is told."""

    def subject(self) -> str:
        """What it works on, for a name that nobody gave: the required fields. Two that may run side by side need two names."""
        required = [field.name for field in msgspec.structs.fields(self) if field.required]
        values = [getattr(self, name) for name in required]
        return "-".join(
            str(each) for value in values for each in (value if isinstance(value, tuple | list) else [value])
        )


A = TypeVar("A", bound=Arguments)
T = TypeVar("T")
V = TypeVar("V")


class WrongArgument(PipelineUsageError):
    """A value that means nothing. It names the option that was typed; who reads a file names the key and its line instead."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"--{key.replace('_', '-')}: {problem}")
        self.key = key
        self.problem = problem


def understood(key: str, read: Callable[[V], T], value: V) -> T:
    """What the text of an option means; :class:`WrongArgument` when it means nothing."""
    try:
        return read(value)
    except ValueError as error:
        raise WrongArgument(key, str(error)) from None


def option(description: str, *, flag: str = "", metavar: str = "", short: str = "") -> msgspec.Meta:
    """A field that is an option. ``flag`` when it is not the field's name, ``short`` as ``-f``."""
    return msgspec.Meta(description=description, extra={"flag": flag, "metavar": metavar, "short": short})


def argument(metavar: str, description: str) -> msgspec.Meta:
    """A field that stands after the command without a flag; a tuple takes all that is left."""
    return msgspec.Meta(description=description, extra={"positional": True, "metavar": metavar})


class RunProgress(Protocol):
    """How far a pipeline that ends has come."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """``amount`` more records are done; ``note`` says what is at hand."""
        ...


class RunContext(Protocol):
    """What a built-in runs with."""

    @property
    def name(self) -> str:
        """The pipeline's name: unless told, the kind and what it works on."""
        ...

    @property
    def bootstrap(self) -> str:
        """Brokers to ask first."""
        ...

    @property
    def reaches_broker(self) -> bool:
        """Whether this process may speak to the broker: not when the driver is elsewhere (Spark Connect), as the broker may be."""
        ...

    @property
    def rate(self) -> int | None:
        """Records a batch at most (``maxOffsetsPerTrigger``), when told."""
        ...

    @property
    def checkpoint(self) -> str:
        """The folder that this pipeline's queries keep their checkpoints in."""
        ...

    def spark(self) -> SparkSession:
        """The session; it is made when first asked for, which takes seconds: check arguments before."""
        ...

    def read_stream(self, options: Mapping[str, object]) -> DataFrame:
        """``readStream.format("penstock")`` with the brokers, the rate, and these options."""
        ...

    def start(self, writer: DataStreamWriter, suffix: str = "") -> StreamingQuery:
        """Start a query: named, with the trigger that was told and a checkpoint of its own below ``checkpoint``.

        ``suffix`` tells several queries of one pipeline apart, and must be the same in every run.
        """
        ...

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        """Wait until all have ended, showing how they go; stops them when the user or a signal says so. Raises what made one fail."""
        ...

    def progress(self, what: str, total: int | None = None) -> RunProgress:
        """Show how far a pipeline that ends is, also to ``penstock pipeline status``."""
        ...

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, nothing: str = "") -> None:
        """The result: a table for people (``columns``), JSON for programs (all). ``nothing`` is said when there are no rows."""
        ...

    def note(self, text: str) -> None:
        """Something a person should know."""
        ...

    def need_answer(self) -> None:
        """Raise now what ``confirm`` would raise later, after much work: that nobody is there to ask."""
        ...

    def confirm(self, question: str) -> bool:
        """Ask before what cannot be undone; true at once with ``--yes``. Nobody there to ask is an error that names ``--yes``."""
        ...


@dataclass(frozen=True, slots=True)
class Builtin(Generic[A]):
    """One ready-made pipeline: its name, what it is told, and what it does. The docstring of ``run`` is the command's help."""

    name: str
    arguments: type[A]
    run: Callable[[A, RunContext], None]
    streams: bool
    """Goes on until it is stopped: has a checkpoint, a trigger and a rate. False: ends by itself."""
    check: Callable[[A], object] | None = None
    """Raises what can be told of wrong values without Spark and without a broker; ``run`` calls it too, or does the same."""

    @property
    def summary(self) -> str:
        """One line."""
        return MODULES[self.name].summary


def builtin_named(name: str) -> Builtin[Arguments]:
    """The built-in; KeyError when there is none of this name."""
    found = import_module(MODULES[name].module).BUILTIN
    assert isinstance(found, Builtin)
    assert found.name == name
    return found
