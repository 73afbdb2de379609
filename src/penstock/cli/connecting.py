"""How a command connects: TLS and credentials from its options, the environment, or a context.

The options are declared once, in :func:`connection_options`; every command that takes ``--bootstrap`` or ``--http`` has them, without a
parameter of its own. What was given is resolved when the command is parsed, and read when it connects. In order of precedence:

1. options of the command
2. the context that ``--context`` names
3. the environment
4. the context that PENSTOCK_CONTEXT names; or the current context, unless 1 or 3 have an address

Credentials are taken as a whole: if one place names a user or has a token, the password of a place below that names another is not used.
There is no option for a password itself, because other users of the machine can see the arguments of a process.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.failures import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.contexts import Contexts, Values
    from penstock.client import ClientSecurity

PANEL: Final = "Connection"
ADDRESSES: Final = {"bootstrap": "PENSTOCK_BOOTSTRAP", "http": "PENSTOCK_HTTP"}
"""The addresses, each with its variable of the environment."""
_ENVIRONMENT: Final = {
    **ADDRESSES,
    "tls": "PENSTOCK_TLS",
    "tls_ca": "PENSTOCK_TLS_CA",
    "tls_cert": "PENSTOCK_TLS_CERT",
    "tls_key": "PENSTOCK_TLS_KEY",
    "tls_server_name": "PENSTOCK_TLS_SERVER_NAME",
    "user": "PENSTOCK_USER",
    "password": "PENSTOCK_PASSWORD",
    "password_file": "PENSTOCK_PASSWORD_FILE",
    "token": "PENSTOCK_TOKEN",
    "token_file": "PENSTOCK_TOKEN_FILE",
    "sasl_mechanism": "PENSTOCK_SASL_MECHANISM",
}
_CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"
_WHO: Final = frozenset({"user", "token", "token_file"})
_PASSWORDS: Final = frozenset({"password", "password_file"})
_CREDENTIALS: Final = _WHO | _PASSWORDS | {"sasl_mechanism"}
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def connection_options(
    *,
    context: Annotated[
        str | None,
        typer.Option("--context", envvar=_CONTEXT_VARIABLE, metavar="NAME", help="Connect as this context says."),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls", help="Use TLS, with the CAs of the operating system; a CA or certificate implies it."
        ),
    ] = None,
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="Trust servers certified by this CA.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="Present this certificate.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="Use the private key of that certificate.")
    ] = None,
    tls_server_name: Annotated[
        str | None,
        typer.Option("--tls-server-name", metavar="NAME", help="Expect this name in the server's certificate."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Log in as this user.")] = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="Read the password from this file.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Log in with the token or API key in this file.")
    ] = None,
    sasl_mechanism: Annotated[
        str | None,
        typer.Option(
            "--sasl-mechanism",
            metavar="NAME",
            help="Log in to Kafka listeners with PLAIN, SCRAM-SHA-256 (the default) or SCRAM-SHA-512.",
        ),
    ] = None,
) -> None:
    """The options, as a signature."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """How the command that runs connects. ``values`` may have passwords, so they are not shown."""

    values: "Values" = field(default_factory=dict, repr=False)
    context: str | None = None
    """The context that was used."""
    is_named: bool = False
    """Whether that context was named, and is not just the current one."""

    def address(self, name: str) -> str | None:
        """An address from the context; None without a context. A Failure if the context has none of this kind."""
        if self.context is None:
            return None
        found = self.values.get(name)
        return "" if found is None else str(found)

    def security(self) -> "ClientSecurity":
        """TLS and credentials; a Failure if they are not complete. Asks for a missing password on a terminal."""
        from penstock.client.errors import InvalidSecurity
        from penstock.client.security import ClientSecurity, Mechanism

        given = {key: value for key, value in self.values.items() if key not in ADDRESSES}
        if "user" in given and not _PASSWORDS & given.keys() and sys.stdin.isatty():
            given["password"] = typer.prompt(f"Password for {given['user']}", hide_input=True, err=True)
        mechanism = given.get("sasl_mechanism")
        try:
            return ClientSecurity(
                tls=_switch(given.get("tls")),
                ca_file=_text(given, "tls_ca"),
                cert_file=_text(given, "tls_cert"),
                key_file=_text(given, "tls_key"),
                server_name=_text(given, "tls_server_name"),
                user=_text(given, "user"),
                password=_text(given, "password"),
                password_file=_text(given, "password_file"),
                token=_text(given, "token"),
                token_file=_text(given, "token_file"),
                mechanism=None if mechanism is None else Mechanism(str(mechanism).upper()),
            )
        except InvalidSecurity as error:
            raise Failure(f"{error}; see docs/how-to/connect-securely.md", Exit.USAGE) from error
        except ValueError:
            names = ", ".join(Mechanism)
            raise Failure(f"Unknown mechanism {mechanism!r}: write one of {names}", Exit.USAGE) from None


def resolve(given: "Values", environment: Mapping[str, str], contexts: "Contexts | None") -> Connecting:
    """How to connect. ``given`` are the options of the command, with ``context`` and the addresses among them; ``contexts`` are None if there is no file."""
    from penstock.cli.contexts import Contexts

    contexts = contexts or Contexts()
    options = {key: value for key, value in given.items() if key != "context"}
    variables: Values = {
        key: environment[variable] for key, variable in _ENVIRONMENT.items() if environment.get(variable)
    }
    named = given.get("context")
    if named is not None:
        # What is missing in the context may come from the environment, but not the address of another broker.
        rest = {key: value for key, value in variables.items() if key not in ADDRESSES}
        return Connecting(_merged((options, contexts.get(str(named)), rest)), str(named), is_named=True)
    name = environment.get(_CONTEXT_VARIABLE)
    if name:
        return Connecting(_merged((options, variables, contexts.get(name))), name, is_named=True)
    if contexts.current is not None and not ADDRESSES.keys() & (options.keys() | variables.keys()):
        return Connecting(_merged((options, variables, contexts.get(contexts.current))), contexts.current)
    return Connecting(_merged((options, variables)))


def _merged(layers: "Sequence[Values]") -> "Values":
    """The values of all layers, the first having precedence; credentials and TLS only as far as they belong together."""
    found: dict[str, str | bool] = {}
    for layer in layers:
        is_other_user = bool(_WHO & found.keys() and _WHO & layer.keys())
        has_password = bool(_PASSWORDS & found.keys())
        is_plain = _switch(found.get("tls")) is False
        for key, value in layer.items():
            if key in _CREDENTIALS and is_other_user:
                continue
            if key in _PASSWORDS and (has_password or found.keys() & {"token", "token_file"}):
                continue
            if key.startswith("tls_") and is_plain:
                continue
            found.setdefault(key, value)
    return found


def _switch(value: str | bool | None) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if value.lower() not in _SWITCHES:
        raise Failure(f"PENSTOCK_TLS is {value!r}: write true or false", Exit.USAGE)
    return _SWITCHES[value.lower()]


def _text(values: "Values", key: str) -> str | None:
    found = values.get(key)
    return None if found is None else str(found)


class _Running:
    """The command of this process. A process runs one command."""

    def __init__(self) -> None:
        self.connecting: Connecting | None = None
        self.given: Values = {}
        self.security: ClientSecurity | None = None


_RUNNING: Final = _Running()


def begin(given: "Values") -> Connecting:
    """Remember the options of the command that is about to run."""
    _RUNNING.connecting = resolve(given, os.environ, _contexts())
    _RUNNING.given, _RUNNING.security = given, None
    return _RUNNING.connecting


def running() -> Connecting:
    """How the command that runs connects."""
    return _RUNNING.connecting or begin({})


def client_security() -> "ClientSecurity":
    """TLS and credentials of the command that runs."""
    if _RUNNING.security is None:
        _RUNNING.security = running().security()
    return _RUNNING.security


def named_security() -> "ClientSecurity":
    """The same without the current context, for brokers that the command does not get from it."""
    found = running()
    if found.context is None or found.is_named:
        return client_security()
    return resolve(_RUNNING.given, os.environ, None).security()


def _contexts() -> "Contexts | None":
    from penstock.cli.contexts import contexts_file, load

    return load(contexts_file(os.environ))
