"""``penstock tls``: certificates for development and for small clusters, and what is in a certificate."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.failures import Exit, Failure
from penstock.cli.options import Output
from penstock.cli.output import Format, Row, emit, emit_document

if TYPE_CHECKING:
    from cryptography import x509

    from penstock.cli.issuing import Issued

app = typer.Typer(help="Make and show certificates.", no_args_is_help=True)

_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_CLUSTER: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_NODE_ID_MAX: Final = 2**31 - 1


@app.command("init")
def init(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Write the files to this directory.")] = Path(
        "tls"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Add this host name or address of the broker; repeatable."),
    ] = None,
    node: Annotated[
        list[int] | None,
        typer.Option("--node", metavar="N", help="Make a certificate for this node of a cluster; repeatable."),
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster of these nodes.")] = "",
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="Make the client's certificate for this user.")
    ] = "client",
) -> None:
    """Make an authority and certificates.

    Writes ca.crt, server.crt and client.crt with their keys, and node-N.crt for each node. Nothing is overwritten. The certificates are valid
    for a year. Keep ca.key in a safe place: with it, anybody can make certificates that are accepted.
    """
    nodes = sorted(set(node or ()))
    if nodes and not _CLUSTER.fullmatch(cluster):
        raise Failure("--node needs --cluster NAME, the name of the cluster that the nodes belong to", Exit.USAGE)
    if any(not 0 <= each <= _NODE_ID_MAX for each in nodes):
        raise Failure(f"--node must be a number from 0 to {_NODE_ID_MAX}", Exit.USAGE)
    hosts = [*dict.fromkeys((*_HOSTS, *(host or ())))]
    files = dict(_files(hosts, nodes, cluster, client))
    _write(directory, files)
    for name in files:
        print(directory / name)
    print(_next_steps(directory, nodes))


def _files(hosts: list[str], nodes: list[int], cluster: str, client: str) -> Iterator[tuple[str, bytes]]:
    from penstock.cli.issuing import Wanted, issue, new_authority

    authority = new_authority("Penstock development CA")
    yield from _pair("ca", authority)
    yield from _pair("server", issue(authority, Wanted(hosts[-1], hosts, is_server=True)))
    for node in nodes:
        uri = f"penstock://{cluster}/node/{node}"
        wanted = Wanted(f"node-{node}", hosts, uri, is_server=True, is_client=True)
        yield from _pair(f"node-{node}", issue(authority, wanted))
    yield from _pair("client", issue(authority, Wanted(client, is_client=True)))


def _pair(name: str, issued: "Issued") -> Iterator[tuple[str, bytes]]:
    yield f"{name}.crt", issued.certificate_pem
    yield f"{name}.key", issued.key_pem


def _write(directory: Path, files: dict[str, bytes]) -> None:
    """Write all files, or none if one of them exists."""
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise Failure(f"{directory / existing[0]} already exists; move it away, or choose another --dir")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        raise Failure(f"Cannot write to {directory}: {os.strerror(error.errno or 0).lower()}") from error


def _next_steps(directory: Path, nodes: list[int]) -> str:
    authority = directory / "ca.crt"
    trusted = f"Clients trust it with {authority}. To let them prove who they are with {directory / 'client.crt'}, add"
    if nodes:
        how = f"--tls-cert {directory / 'node-N.crt'} --tls-key {directory / 'node-N.key'} --tls-ca {authority} --peer-tls require"
        return (
            f"\nCopy {authority} and the files of each node to it, then start each: penstock serve {how}\n"
            f"{trusted} --tls-client-auth required"
        )
    how = f"--tls-cert {directory / 'server.crt'} --tls-key {directory / 'server.key'}"
    return f"\nStart the broker: penstock serve {how}\n{trusted} --tls-ca {authority} --tls-client-auth required"


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Certificate in PEM form, or a chain of several.")],
    output: Output = Format.TABLE,
) -> None:
    """Show what is in a certificate: names, issuer, validity and fingerprint."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise Failure(f"Cannot read {file}: {os.strerror(error.errno or 0).lower()}") from error
    except ValueError as error:
        raise Failure(f"{file} has no certificate in PEM form") from error
    rows = [_row(certificate) for certificate in found]
    if output is Format.TABLE:
        for row in rows:
            emit([{"field": name, "value": value} for name, value in row.items()], ["field", "value"], output)
    else:
        emit_document(rows)


def _row(certificate: "x509.Certificate") -> Row:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = [str(name.value) for name in names]
    except x509.ExtensionNotFound:
        shown = []
    return {
        "subject": _subject(certificate),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": ", ".join(shown),
        "valid_from": certificate.not_valid_before_utc.isoformat(),
        "valid_until": certificate.not_valid_after_utc.isoformat(),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _subject(certificate: "x509.Certificate") -> str:
    """The subject, as the rules for principals see it."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from penstock.core.security.certificates import distinguished_name, subject_of

    return distinguished_name(subject_of(certificate.public_bytes(Encoding.DER)))
