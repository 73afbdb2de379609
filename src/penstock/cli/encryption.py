"""``penstock encryption``: master keys, and the encryption of a data directory whose broker is stopped."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.locks import LOCK, is_locked
from penstock.cli.options import EncryptionKeyFile, Output
from penstock.cli.output import Format, Row, emit

if TYPE_CHECKING:
    from penstock.ports import Keys

app = typer.Typer(help="Manage the encryption of a data directory.", no_args_is_help=True)

DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Use this data directory.")]


@app.command("new-key")
def new_key() -> None:
    """Print a new master key.

    Write it to a file that only the broker can read: (umask 077 && penstock encryption new-key > master.key).
    """
    from penstock.encryption import keys

    sys.stdout.write(keys.new_key() + "\n")


@app.command("status")
def status(
    data_dir: DataDir = Path("data"), encryption_key_file: EncryptionKeyFile = None, output: Output = Format.TABLE
) -> None:
    """Show whether a data directory is encrypted, by which master key, and what is still in the clear."""
    from penstock.cli.data_folder import keys_of, refusals
    from penstock.encryption.directory import KEYRING, count, open_encrypted
    from penstock.encryption.keyring import master_of
    from penstock.runtime.disk import RealDisk

    keys = keys_of(encryption_key_file)
    with refusals():
        opened = open_encrypted(RealDisk(), _existing(data_dir), keys, note)
    row: Row = {"encrypted": False}
    if opened is not None:
        counts = count(opened, str(data_dir))
        row = {
            "encrypted": True,
            "master_key": master_of((data_dir / KEYRING).read_bytes()),
            "keys": len(opened.ring.keys),
            "encrypted_segments": counts.encrypted,
            "clear_segments": counts.clear,
            "unreadable_segments": counts.unreadable,
        }
    emit([row], list(row), output)


@app.command("rotate")
def rotate(data_dir: DataDir = Path("data"), encryption_key_file: EncryptionKeyFile = None) -> None:
    """Wrap the keys of a data directory with the first master key of the key file, and use a new key for new data.

    Existing data is not rewritten. The broker must be stopped; it does the same when it starts with another first key.
    """
    from penstock.cli.data_folder import refusals
    from penstock.encryption import directory
    from penstock.runtime.data_dir import DataDirError
    from penstock.runtime.disk import RealDisk
    from penstock.runtime.stopped_users import rewrap_secrets

    keys = _keys(encryption_key_file)
    path = _stopped(data_dir)
    with refusals():
        if not directory.is_encrypted(RealDisk(), path):
            raise Failure(f"{data_dir} is not encrypted: start the broker with encryption.key_file first")
        directory.rotate(RealDisk(), path, keys, always=True)
        try:
            cluster = rewrap_secrets(path, keys, note)
        except DataDirError as error:
            raise Failure(str(error)) from error
    note(f"{data_dir} is wrapped by master key {keys.current}")
    if cluster:
        note(
            f"The secrets of cluster {cluster} are in etcd: keep the older master keys in the key file until a node has started with it"
        )


@app.command("convert")
def convert(data_dir: DataDir = Path("data"), encryption_key_file: EncryptionKeyFile = None) -> None:
    """Encrypt the closed segments that were written before encryption was turned on. The broker must be stopped."""
    from penstock.cli.data_folder import refusals
    from penstock.encryption import directory
    from penstock.runtime.disk import RealDisk

    keys = _keys(encryption_key_file)
    path = _stopped(data_dir)
    with refusals():
        converted = directory.convert(RealDisk(), path, keys, note)
    note(f"Encrypted {converted} segment{'' if converted == 1 else 's'}")


def _keys(key_file: Path | None) -> "Keys":
    from penstock.cli.data_folder import keys_of

    keys = keys_of(key_file)
    if keys is None:
        raise Failure(
            "A master key is needed: specify --encryption-key-file, or set PENSTOCK_ENCRYPTION_KEY", Exit.USAGE
        )
    return keys


def _existing(data_dir: Path) -> str:
    if not data_dir.is_dir():
        raise Failure(f"Data directory {data_dir} does not exist; specify it with --data-dir", Exit.NOT_FOUND)
    return str(data_dir)


def _stopped(data_dir: Path) -> str:
    path = _existing(data_dir)
    if is_locked(data_dir / LOCK):
        raise Failure(f"A broker is using {data_dir}; stop it first")
    return path
