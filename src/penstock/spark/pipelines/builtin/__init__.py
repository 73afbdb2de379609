"""The built-in pipelines, and how to declare one.

A built-in is a module here with a ``BUILTIN``, listed in ``SUMMARIES``::

    class ArchiveArguments(Arguments, frozen=True):
        topics: Annotated[tuple[str, ...], argument("TOPIC...", "The topics to archive.")]
        to: Annotated[str, option("Where the lake is.", metavar="PATH")]
        format: Annotated[LakeFormat, option("The format of the lake.")] = LakeFormat.PARQUET
        source: Annotated[str, option("Read this instead.", flag="--from")] = msgspec.field(name="from", default="")

    def run(arguments: ArchiveArguments, context: Execution) -> None: ...

    BUILTIN = Builtin("archive", ArchiveArguments, run, streams=True)

The declaration is used for ``penstock pipeline archive orders --to ./lake --format parquet`` and, in a file, for
``[pipeline] kind = "archive"`` with a table ``[archive]`` whose keys are the fields. The flag of a field is its name with dashes. A field
can be ``str``, ``int``, ``float``, ``bool``, a ``StrEnum``, one of these or None, or a tuple of strings (an option that can be repeated; a
list in a file). Fields without a default are required.

The options of all pipelines are not declared: ``--bootstrap``, ``--master``, ``--name``, ``--conf``, ``--state-dir``, ``--yes``,
``--output``, and for streams ``--checkpoint``, ``--trigger``, ``--once``, ``--rate``, ``--detach``. They are in the
:class:`~penstock.spark.pipelines.run.Execution`.

Modules here are imported for ``--help`` and for checking files, so they import Spark only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from penstock.spark.pipelines.errors import PipelineUsageError

if TYPE_CHECKING:
    from penstock.spark.pipelines.run import Execution

SUMMARIES: Final[Mapping[str, str]] = {
    "archive": "Copy topics to a lake, exactly once.",
    "replay": "Copy a range of old records to a topic.",
    "dlq-report": "Show dead letters, grouped by reason.",
    "redrive": "Redrive the dead letters that an SQL condition selects.",
    "stats": "Compute statistics of topics by time window.",
    "transform": "Transform topics with SQL into a topic.",
}
"""By name, in the order of ``--help``."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the arguments of a built-in."""

    def subject(self) -> str:
        """The required fields, for the default name. Pipelines that may run at the same time need different names."""
        required = [field.name for field in msgspec.structs.fields(self) if field.required]
        values = [getattr(self, name) for name in required]
        return "-".join(
            str(each) for value in values for each in (value if isinstance(value, tuple | list) else [value])
        )


A = TypeVar("A", bound=Arguments)
T = TypeVar("T")
V = TypeVar("V")


class WrongArgument(PipelineUsageError):
    """The value of an option is not valid. For a file, the error names the key and its line instead of the option."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"--{key.replace('_', '-')}: {problem}")
        self.key = key
        self.problem = problem


def understood(key: str, read: Callable[[V], T], value: V) -> T:
    """Parse the value of an option; :class:`WrongArgument` if it is not valid."""
    try:
        return read(value)
    except ValueError as error:
        raise WrongArgument(key, str(error)) from None


def option(description: str, *, flag: str = "", metavar: str = "", short: str = "") -> msgspec.Meta:
    """A field that is an option. ``flag`` if it differs from the field's name, ``short`` as ``-f``."""
    return msgspec.Meta(description=description, extra={"flag": flag, "metavar": metavar, "short": short})


def argument(metavar: str, description: str) -> msgspec.Meta:
    """A field that is a positional argument; a tuple takes all that follow."""
    return msgspec.Meta(description=description, extra={"positional": True, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class Builtin(Generic[A]):
    """One built-in pipeline. The docstring of ``run`` is the help of its command."""

    name: str
    arguments: type[A]
    run: Callable[[A, Execution], None]
    streams: bool
    """Whether it runs until it is stopped, and so has a checkpoint, a trigger and a rate."""
    check: Callable[[A], object] | None = None
    """Checks the arguments as far as possible without Spark and without a broker. ``run`` checks the same."""

    @property
    def summary(self) -> str:
        """One line."""
        return SUMMARIES[self.name]


def builtin_named(name: str) -> Builtin[Arguments]:
    """The built-in with one of the names in ``SUMMARIES``."""
    found = import_module(f"{__name__}.{name.replace('-', '_')}").BUILTIN
    assert isinstance(found, Builtin)
    assert found.name == name
    return found
