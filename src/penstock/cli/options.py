"""Options that several commands share, and what they mean."""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from penstock.cli.connecting import ADDRESSES, PANEL, client_security, running
from penstock.cli.failures import Exit, Failure, code_of, note
from penstock.cli.output import Format

if TYPE_CHECKING:
    from typer._click.core import Parameter

    from penstock.client import AccessAdmin, Cluster, QueueAdmin, QueueClient, SinkClient
    from penstock.client.status import StatusClient
    from penstock.client.user_admin import UserAdmin

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

    from penstock.cli import connecting
    from penstock.client import Admin, ClientError, Cluster, GroupAdmin

    try:
        bootstrap = os.environ.get("PENSTOCK_BOOTSTRAP") or connecting.running().address("bootstrap")
        security = connecting.client_security()
        with Cluster(bootstrap or BOOTSTRAP_DEFAULT, timeout_ms=COMPLETION_TIMEOUT_MS, security=security) as cluster:
            if what == "topics":
                names = [topic.name for topic in Admin(cluster).topics() if not topic.internal]
            else:
                names = [group.group_id for group in GroupAdmin(cluster).groups()]
    except (ClientError, ValueError, Failure):
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


@functools.cache
def _connection_options() -> tuple["Parameter", ...]:
    """The options of :mod:`penstock.cli.connecting`, made once for all commands."""
    from penstock.cli.connecting import connection_options

    app = typer.Typer(add_completion=False)
    app.command()(connection_options)
    return tuple(typer.main.get_command(app).params)


class AliasCommand(typer.core.TyperCommand):
    """A command that also takes ``--json`` for ``--output json``, and ``--bootstrap-server``, Kafka's word, for ``--bootstrap``.

    If it connects to a broker, it takes the options of :mod:`penstock.cli.connecting` too.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        own = {name for parameter in self.params for name in parameter.opts}
        self._addresses = _addresses_of(self.params)
        self._connection: Sequence[Parameter] = ()
        if self._addresses:
            self._connection = [each for each in _connection_options() if not own.intersection(each.opts)]
            self.params = [*self.params, *self._connection]

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Rewrite the aliases for the parser; what follows ``--`` is left as it is."""
        known = {name for parameter in self.params for name in parameter.opts}
        end = args.index("--") if "--" in args else len(args)
        own, rest = args[:end], args[end:]
        if "--output" in known and _JSON not in known:
            own = [f"--output={Format.JSON}" if each == _JSON else each for each in own]
        if _BOOTSTRAP in known:
            own = [re.sub(_AS_KAFKA_SAYS, _BOOTSTRAP, each) for each in own]
        left = super().parse_args(ctx, own + rest)
        if self._addresses and not ctx.resilient_parsing:
            self._begin(ctx)
        return left

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The options of the connection are in a section of their own."""
        shown, apart = self.params, [each for each in self.params if _is_about_connection(each, self)]
        self.params = [each for each in shown if each not in apart]
        try:
            super().format_options(ctx, formatter)
        finally:
            self.params = shown
        records = [record for each in apart if (record := each.get_help_record(ctx)) is not None]
        if records:
            with formatter.section(PANEL):
                formatter.write_dl(records)

    def _begin(self, ctx: typer.Context) -> None:
        """Take the options of the connection out of the parameters, and the addresses of a context into them."""
        from penstock.cli import connecting

        given = {each.name: ctx.params.pop(each.name) for each in self._connection}
        given |= {kind: ctx.params[name] for name, kind in self._addresses.items() if _is_given(ctx, name)}
        if not _is_given(ctx, "context"):
            given.pop("context", None)
        chosen = connecting.begin({name: value for name, value in given.items() if value is not None})
        for name, kind in self._addresses.items():
            address = chosen.address(kind)
            # Without a default, the command finds out the address itself; the current context is only for those that do not.
            if address is not None and (chosen.is_named or ctx.params[name] is not None):
                ctx.params[name] = address


def _addresses_of(parameters: Sequence["Parameter"]) -> dict[str, str]:
    """The parameters of a command that are addresses to connect to, with their kind: ``bootstrap`` or ``http``."""
    kinds = {variable: kind for kind, variable in ADDRESSES.items()}
    variables = {each.name: each.envvar for each in parameters}
    return {name: kinds[variable] for name, variable in variables.items() if variable in kinds}


def _is_about_connection(parameter: "Parameter", command: AliasCommand) -> bool:
    if parameter in command._connection or parameter.name in command._addresses:  # noqa: SLF001 - beside its class
        return True
    return bool(command._addresses) and "--request-timeout" in parameter.opts  # noqa: SLF001


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the option is on the command line, and not from the environment or a default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


EncryptionKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--encryption-key-file",
        metavar="FILE",
        help="Read the master key of an encrypted data directory from this file.  [default: PENSTOCK_ENCRYPTION_KEY]",
        show_default=False,
    ),
]
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

    with _address_of("--bootstrap", bootstrap):
        return Cluster(
            bootstrap, client_id="penstock-cli", timeout_ms=int(timeout_s * 1000), security=client_security()
        )


def queue_admin(http: str, timeout_s: float) -> "QueueAdmin":
    """For one command that inspects queues."""
    from penstock.client import QueueAdmin

    with _address_of("--http", http):
        return QueueAdmin(http, timeout_ms=int(timeout_s * 1000), security=client_security())


def access_admin(http: str, timeout_s: float) -> "AccessAdmin":
    """For one command that administers access rules or roles."""
    from penstock.client import AccessAdmin

    with _address_of("--http", http):
        return AccessAdmin(http, timeout_ms=int(timeout_s * 1000), security=client_security())


def status_client(http: str, timeout_s: float) -> "StatusClient":
    """For one command that shows a status, or drains a node."""
    from penstock.client.status import StatusClient

    with _address_of("--http", http):
        return StatusClient(http, timeout_ms=int(timeout_s * 1000), security=client_security())


def queue_client(http: str, timeout_s: float, owner: str | None) -> "QueueClient":
    """For one command that works on a queue."""
    from penstock.client import QueueClient

    with _address_of("--http", http):
        return QueueClient(http, owner=owner, timeout_ms=int(timeout_s * 1000), security=client_security())


def user_admin(http: str, timeout_s: float) -> "UserAdmin":
    """For one command about users and API keys."""
    from penstock.client.user_admin import UserAdmin

    with _address_of("--http", http):
        return UserAdmin(http, timeout_ms=int(timeout_s * 1000), security=client_security())


def sink_client(http: str, timeout_s: float) -> "SinkClient":
    """For one command that administers sinks. It does not wait for a broker that is down."""
    from penstock.client import SinkClient

    with _address_of("--http", http):
        return SinkClient(http, timeout_ms=int(timeout_s * 1000), away_ms=0, security=client_security())


@contextmanager
def _address_of(flag: str, address: str) -> Iterator[None]:
    """Report an address that cannot be parsed as wrong usage."""
    if not address and (context := running().context) is not None:
        raise Failure(
            f"The context {context!r} has no address for {flag}: specify it, or add it with penstock context set {context} {flag} HOST:PORT",
            Exit.USAGE,
        )
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
