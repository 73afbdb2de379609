"""``penstock serve``: the broker.

It starts on its own small parser, without Typer: a broker that is started for a test, or restarted under load, should not
spend a tenth of a second on building the other commands. The Typer command of the same name is there for help and
completion; a test checks that both have the same flags.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.locks import LOCK, is_locked

if TYPE_CHECKING:
    from penstock.settings import Settings

FLAGS: Final[Mapping[str, str]] = {
    "--data-dir": "server.data_dir",
    "--kafka": "listeners.kafka",
    "--http": "listeners.http",
    "--tcp": "listeners.tcp",
    "--grpc": "listeners.grpc",
    "--cluster": "cluster.name",
    "--node-id": "server.node_id",
    "--etcd": "cluster.etcd",
    "--etcd-ca": "cluster.etcd_ca",
    "--etcd-cert": "cluster.etcd_cert",
    "--etcd-key": "cluster.etcd_key",
    "--advertise": "cluster.advertise",
    "--peer": "listeners.peer",
    "--peer-tls": "cluster.peer_tls",
    "--rack": "cluster.rack",
    "--encryption-key-file": "encryption.key_file",
    "--tls-cert": "tls.cert_file",
    "--tls-key": "tls.key_file",
    "--tls-ca": "tls.ca_file",
    "--tls-client-auth": "tls.client_auth",
    "--log-format": "server.log_format",
    "--log-level": "server.log_level",
}
"""Each flag and the setting that it sets."""
CLUSTER_ONLY: Final = (
    "--node-id",
    "--etcd",
    "--etcd-ca",
    "--etcd-cert",
    "--etcd-key",
    "--advertise",
    "--peer",
    "--peer-tls",
    "--rack",
)
"""Flags without a meaning for a broker that runs alone: a caller that uses one has forgotten --cluster."""
CONFIG: Final = "--config"
RESET: Final = "--reset-wal"


class ServeArguments(NamedTuple):
    """The parsed command line."""

    config: str | None
    flags: Mapping[str, str]
    reset: bool


def parse(arguments: Sequence[str]) -> ServeArguments:
    """Parse ``--flag VALUE`` and ``--flag=VALUE``; the last one wins."""
    config: str | None = None
    flags: dict[str, str] = {}
    reset = False
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag == RESET and not equals:
            reset = True
            continue
        if flag != CONFIG and flag not in FLAGS:
            raise Failure(_unknown(flag), Exit.USAGE)
        if not equals:
            if not rest:
                raise Failure(f"{flag} needs a value; see penstock serve --help", Exit.USAGE)
            value = rest.pop(0)
        if flag == CONFIG:
            config = value
        else:
            flags[FLAGS[flag]] = value
    return ServeArguments(config, flags, reset)


def serve(arguments: ServeArguments, environment: Mapping[str, str]) -> int:
    """Run the broker until it is stopped; the exit code."""
    from penstock.config import load

    settings = load(arguments.config, environment, arguments.flags)
    lost = [flag for flag in CLUSTER_ONLY if FLAGS[flag] in arguments.flags]
    if lost and not settings.cluster.name:
        raise Failure(f"{lost[0]} is only for a node of a cluster: add --cluster NAME, or leave it out", Exit.USAGE)
    if arguments.reset:
        moved = move_aside(Path(settings.server.data_dir), datetime.now(UTC))
        if moved is not None:
            note(f"--reset-wal: renamed {settings.server.data_dir} to {moved}; nothing was deleted")
    return _run(settings)


def main(arguments: Sequence[str]) -> int:
    """The fast way in: ``penstock serve ARGUMENTS``."""
    return serve(parse(arguments), os.environ)


def move_aside(data_dir: Path, now: datetime) -> Path | None:
    """Rename the data directory to DIR.reset-TIME; None when there is nothing to move. Never deletes."""
    if not data_dir.exists():
        return None
    if is_locked(data_dir / LOCK):
        raise Failure(f"{data_dir} is in use by a running broker; stop it before {RESET}")
    resolved = data_dir.resolve()
    base = f"{resolved.name}.reset-{now:%Y%m%dT%H%M%SZ}"
    target = resolved.with_name(base)
    count = 1
    while target.exists():
        count += 1
        target = resolved.with_name(f"{base}-{count}")
    resolved.rename(target)
    return target


def _run(settings: "Settings") -> int:
    from penstock.server import run

    return run(settings)


def _unknown(flag: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(flag, [*FLAGS, CONFIG, RESET], n=1)
    hint = f"did you mean {close[0]}?" if close else "see penstock serve --help"
    return f"Unknown option {flag!r} of penstock serve; {hint}"
