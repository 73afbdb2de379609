"""Options that several commands share, and what they mean."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
import typer.core

from penstock.cli.failures import Exit, Failure, code_of, note
from penstock.cli.output import Format

if TYPE_CHECKING:
    from penstock.client import AccessAdmin, Cluster, QueueAdmin, QueueClient, SinkClient
    from penstock.client.status import StatusClient

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
HTTP_DEFAULT = "127.0.0.1:8080"
COMPLETION_TIMEOUT_MS = 1_000


def complete_topic(incomplete: str) -> list[str]:
    """Topic names for the shell, if a broker answers quickly at the usual address."""
    return _complete("topics", incomplete)


def complete_group(incomplete: str) -> list[str]:
    """Group ids for the shell."""
    return _complete("groups", incomplete)


def _complete(what: str, incomplete: str) -> list[str]:
    import os

    from penstock.client import Admin, ClientError, Cluster, GroupAdmin

    bootstrap = os.environ.get("PENSTOCK_BOOTSTRAP", BOOTSTRAP_DEFAULT)
    try:
        with Cluster(bootstrap, timeout_ms=COMPLETION_TIMEOUT_MS) as cluster:
            if what == "topics":
                names = [topic.name for topic in Admin(cluster).topics() if not topic.internal]
            else:
                names = [group.group_id for group in GroupAdmin(cluster).groups()]
    except (ClientError, ValueError):
        return []
    return [name for name in names if name.startswith(incomplete)]


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Connect to the cluster through these brokers.",
    ),
]
Http = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="PENSTOCK_HTTP",
        metavar="HOST:PORT[,...]",
        help="Use the HTTP API at this address, or the first of several that answers.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--request-timeout", metavar="SECONDS", min=0.001, help="Wait at most this long for a broker.")
]
Output = Annotated[
    Format, typer.Option("--output", "-o", help="Print a table, or JSON for programs; --json is short for -o json.")
]
_JSON: Final = "--json"


_BOOTSTRAP: Final = "--bootstrap"
_KAFKAS_WORDS: Final = ("--bootstrap-server", "--bootstrap-servers")
_AS_KAFKA_SAYS: Final = rf"^({'|'.join(_KAFKAS_WORDS)})(?==|$)"


def options_of(command: typer.core.TyperCommand) -> set[str]:
    """The options that a command takes, with their aliases."""
    known = {name for parameter in command.params for name in parameter.opts}
    if _BOOTSTRAP in known:
        known.update(_KAFKAS_WORDS)
    if "--output" in known:
        known.add(_JSON)
    return known


class AliasCommand(typer.core.TyperCommand):
    """A command that also takes ``--json`` for ``--output json``, and ``--bootstrap-server``, Kafka's word, for ``--bootstrap``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Rewrite the aliases for the parser; what follows ``--`` is left as it is."""
        known = {name for parameter in self.params for name in parameter.opts}
        end = args.index("--") if "--" in args else len(args)
        own, rest = args[:end], args[end:]
        if "--output" in known and _JSON not in known:
            own = [f"--output={Format.JSON}" if each == _JSON else each for each in own]
        if _BOOTSTRAP in known:
            own = [re.sub(_AS_KAFKA_SAYS, _BOOTSTRAP, each) for each in own]
        return super().parse_args(ctx, own + rest)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
YesToPlan = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required without a terminal.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Succeed if it does not exist.")]


def ask_first(question: str, undone: str, *, yes: bool) -> None:
    """Ask on a terminal, and fail with ``undone`` if the answer is no. A program is not asked."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise Failure(undone, Exit.FAILED)


def remove_each(
    names: Iterable[str], kind: str, remove: Callable[[str], None], *, if_exists: bool, done: str = "Removed"
) -> None:
    """Remove things one after the other, and report each; one that does not exist is an error unless ``if_exists``."""
    for name in names:
        try:
            remove(name)
        except Exception as error:
            if not if_exists or code_of(error) is not Exit.NOT_FOUND:
                raise
            note(f"{kind.capitalize()} {name} does not exist")
        else:
            note(f"{done} {kind} {name}")


def ask_about_plan(question: str, undone: str, doing: str, *, yes: bool) -> None:
    """The same for a command that shows a plan first. A program has not seen the plan, so it is wrong usage without ``--yes``."""
    if not yes and not sys.stdin.isatty():
        raise Failure(f"Cannot ask without a terminal: add --yes to {doing}, or --dry-run to show the plan", Exit.USAGE)
    ask_first(question, undone, yes=yes)


TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]
TopicNames = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="Names of one or more topics.", autocompletion=complete_topic)
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_group)]
WorkGroup = Annotated[
    str, typer.Option("--group", "-g", help="Use the queue of this group.", autocompletion=complete_group)
]
GroupNames = Annotated[
    list[str], typer.Argument(metavar="GROUP...", help="Names of one or more groups.", autocompletion=complete_group)
]
TIMEOUT_S_DEFAULT = 30.0


def connected(bootstrap: str, timeout_s: float) -> "Cluster":
    """A cluster for one command."""
    from penstock.client import Cluster

    with _address_of("--bootstrap"):
        return Cluster(bootstrap, client_id="penstock-cli", timeout_ms=int(timeout_s * 1000))


def queue_admin(http: str, timeout_s: float) -> "QueueAdmin":
    """For one command that inspects queues."""
    from penstock.client import QueueAdmin

    with _address_of("--http"):
        return QueueAdmin(http, timeout_ms=int(timeout_s * 1000))


def access_admin(http: str, timeout_s: float) -> "AccessAdmin":
    """For one command that administers access rules or roles."""
    from penstock.client import AccessAdmin

    with _address_of("--http"):
        return AccessAdmin(http, timeout_ms=int(timeout_s * 1000))


def status_client(http: str, timeout_s: float) -> "StatusClient":
    """For one command that shows a status, or drains a node."""
    from penstock.client.status import StatusClient

    with _address_of("--http"):
        return StatusClient(http, timeout_ms=int(timeout_s * 1000))


def queue_client(http: str, timeout_s: float, owner: str | None) -> "QueueClient":
    """For one command that works on a queue."""
    from penstock.client import QueueClient

    with _address_of("--http"):
        return QueueClient(http, owner=owner, timeout_ms=int(timeout_s * 1000))


def sink_client(http: str, timeout_s: float) -> "SinkClient":
    """For one command that administers sinks. It does not wait for a broker that is down."""
    from penstock.client import SinkClient

    with _address_of("--http"):
        return SinkClient(http, timeout_ms=int(timeout_s * 1000), away_ms=0)


@contextmanager
def _address_of(flag: str) -> Iterator[None]:
    """Report an address that cannot be parsed as wrong usage."""
    try:
        yield
    except ValueError as error:
        raise Failure(f"{flag}: {error}", Exit.USAGE) from error


def with_parameters(parameters: Sequence[inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command that takes keywords have these parameters, in the place of ``**keywords``."""

    def declared(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [each for each in own if each.kind is not each.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *parameters])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in (*named, *parameters)}
        return command

    return declared


def parse_pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a dict; a value may contain equal signs."""
    pairs: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failure(f"{flag} {text!r}: write NAME=VALUE", Exit.USAGE)
        pairs[name.strip()] = value
    return pairs
