"""``penstock serve`` as Typer knows it: what ``--help`` and the shell's completion show. Runs the same :mod:`penstock.cli.serve`."""

import inspect
import os
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import serve as fast
from penstock.cli.failures import Exit
from penstock.cli.options import with_parameters
from penstock.settings import ClientAuth, LogFormat, LogLevel, PeerTlsMode

_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "--data-dir": ("DIR", "Store all data in this directory.  [default: ./data]"),
    "--kafka": ("HOST:PORT", "Listen here for the Kafka protocol, or off.  [default: 127.0.0.1:9092]"),
    "--http": ("HOST:PORT", "Listen here for HTTP, or off.  [default: 127.0.0.1:8080]"),
    "--tcp": ("HOST:PORT", "Listen here for JSON lines over TCP, or off.  [default: 127.0.0.1:4040]"),
    "--grpc": ("HOST:PORT", "Listen here for gRPC, or off.  [default: 127.0.0.1:50051]"),
    "--cluster": ("NAME", "Join this cluster; without it, the broker runs alone."),
    "--node-id": ("N", "Use this number for the node, unique in the cluster.  [default: 1; cluster only]"),
    "--etcd": ("URL,URL", "Connect to etcd here; https://... for TLS.  [cluster only]"),
    "--etcd-ca": ("FILE", "Trust the etcd servers certified by this file."),
    "--etcd-cert": ("FILE", "Present this certificate to etcd."),
    "--etcd-key": ("FILE", "Use the private key of that certificate."),
    "--advertise": ("HOST", "Advertise this host to other nodes and clients.  [cluster only]"),
    "--peer": ("HOST:PORT", "Listen here for other nodes.  [default: 127.0.0.1:9093; cluster only]"),
    "--peer-tls": ("", "Use TLS between nodes.  [default: off; cluster only]"),
    "--rack": ("NAME", "Declare the rack of the node; replicas are spread over racks.  [cluster only]"),
    "--encryption-key-file": ("FILE", "Encrypt the data with the master key in this file."),
    "--tls-cert": ("FILE", "Use TLS on every listener, with this certificate."),
    "--tls-key": ("FILE", "Use the private key of that certificate."),
    "--tls-ca": ("FILE", "Trust the client certificates certified by this file."),
    "--tls-client-auth": ("", "Ask clients for certificates.  [default: none]"),
    "--log-format": ("", "Write the log to stderr in this format.  [default: text]"),
    "--log-level": ("", "Log messages of this level and above.  [default: info]"),
}
"""Each flag with its placeholder and its help."""
_CHOICES: Final[dict[str, type]] = {
    "--peer-tls": PeerTlsMode,
    "--tls-client-auth": ClientAuth,
    "--log-format": LogFormat,
    "--log-level": LogLevel,
}

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE.toml", help="Read settings from this file.")]
ResetWal = Annotated[
    bool,
    typer.Option("--reset-wal", help="Start empty: rename the data directory to DIR.reset-TIME; nothing is deleted."),
]


with_flags: Final = with_parameters(
    [
        inspect.Parameter(
            flag.removeprefix("--").replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _CHOICES.get(flag, str) | None, typer.Option(flag, metavar=metavar or None, help=text)
            ],
        )
        for flag, (metavar, text) in _FLAGS.items()
    ]
)
"""Lets a command take every flag of the broker."""


def flags_given(**given: object) -> dict[str, str]:
    """The flags that were given, by the names of their settings."""
    paths = {flag.removeprefix("--").replace("-", "_"): path for flag, path in fast.FLAGS.items()}
    return {
        paths[name]: str(value.value if isinstance(value, Enum) else value)
        for name, value in given.items()
        if value is not None
    }


@with_flags
def serve(*, config: Config = None, reset_wal: ResetWal = False, **flags: object) -> None:
    """Run the broker.

    Port 0 selects a free port, which the line "penstock ready ..." on stdout shows.
    Every setting can also come from a file or the environment (PENSTOCK__SECTION__KEY); flags take precedence.
    On SIGTERM or SIGINT, the broker answers the requests in flight, syncs its data to disk and exits with 0.
    """
    file = None if config is None else str(config)
    code = fast.serve(fast.ServeArguments(file, flags_given(**flags), reset_wal), os.environ)
    if code:
        raise typer.Exit(Exit.FAILED if code < 0 else code)
