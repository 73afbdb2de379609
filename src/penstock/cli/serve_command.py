"""``penstock serve`` as Typer knows it: what ``--help`` and the shell's completion show. Runs the same :mod:`penstock.cli.serve`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import serve as fast
from penstock.cli.failures import Exit
from penstock.config import LogFormat, LogLevel

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE.toml", help="Read settings from this file.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Store all data in this directory.  [default: ./data]")
]
Kafka = Annotated[
    str | None,
    typer.Option(
        "--kafka", metavar="HOST:PORT", help="Listen here for the Kafka protocol, or off.  [default: 127.0.0.1:9092]"
    ),
]
Http = Annotated[
    str | None,
    typer.Option("--http", metavar="HOST:PORT", help="Listen here for HTTP, or off.  [default: 127.0.0.1:8080]"),
]
Tcp = Annotated[
    str | None,
    typer.Option(
        "--tcp", metavar="HOST:PORT", help="Listen here for JSON lines over TCP, or off.  [default: 127.0.0.1:4040]"
    ),
]
Grpc = Annotated[
    str | None,
    typer.Option("--grpc", metavar="HOST:PORT", help="Listen here for gRPC, or off.  [default: 127.0.0.1:50051]"),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Join this cluster; without it, the broker runs alone.")
]
NodeIdOption = Annotated[
    str | None,
    typer.Option(
        "--node-id",
        metavar="N",
        help="Use this number for the node, unique in the cluster.  [default: 1; cluster only]",
    ),
]
Etcd = Annotated[
    str | None,
    typer.Option("--etcd", metavar="URL,URL", help="Connect to etcd here; https://... for TLS.  [cluster only]"),
]
EtcdCa = Annotated[
    str | None, typer.Option("--etcd-ca", metavar="FILE", help="Trust the etcd servers certified by this file.")
]
EtcdCert = Annotated[str | None, typer.Option("--etcd-cert", metavar="FILE", help="Present this certificate to etcd.")]
EtcdKey = Annotated[
    str | None, typer.Option("--etcd-key", metavar="FILE", help="Use the private key of that certificate.")
]
Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST", help="Tell other nodes and clients to connect to this host.  [cluster only]"
    ),
]
Peer = Annotated[
    str | None,
    typer.Option(
        "--peer", metavar="HOST:PORT", help="Listen here for other nodes.  [default: 127.0.0.1:9093; cluster only]"
    ),
]
Rack = Annotated[
    str | None,
    typer.Option(
        "--rack",
        metavar="NAME",
        help="Place replicas in racks other than this one, the rack of the node.  [cluster only]",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", help="Write the log to stderr in this format.  [default: text]")
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option("--log-level", help="Log messages of this level and above.  [default: info]")
]
ResetWal = Annotated[
    bool,
    typer.Option("--reset-wal", help="Start empty: rename the data directory to DIR.reset-TIME; nothing is deleted."),
]


def flags_given(**given: object) -> dict[str, str]:
    """The flags that were given, by the names of their settings."""
    paths = {flag.removeprefix("--").replace("-", "_"): path for flag, path in fast.FLAGS.items()}
    return {
        paths[name]: str(value.value if isinstance(value, LogFormat | LogLevel) else value)
        for name, value in given.items()
        if value is not None
    }


def serve(
    config: Config = None,
    data_dir: DataDir = None,
    kafka: Kafka = None,
    http: Http = None,
    tcp: Tcp = None,
    grpc: Grpc = None,
    cluster: Cluster = None,
    node_id: NodeIdOption = None,
    etcd: Etcd = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    advertise: Advertise = None,
    peer: Peer = None,
    rack: Rack = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    reset_wal: ResetWal = False,
) -> None:
    """Run the broker.

    Port 0 selects a free port, which the line "penstock ready ..." on stdout shows.
    Every setting can also come from a file or the environment (PENSTOCK__SECTION__KEY); flags take precedence.
    On SIGTERM or SIGINT, the broker answers the requests in flight, syncs its data to disk and exits with 0.
    """
    flags = flags_given(
        data_dir=data_dir,
        kafka=kafka,
        http=http,
        tcp=tcp,
        grpc=grpc,
        cluster=cluster,
        node_id=node_id,
        etcd=etcd,
        etcd_ca=etcd_ca,
        etcd_cert=etcd_cert,
        etcd_key=etcd_key,
        advertise=advertise,
        peer=peer,
        rack=rack,
        log_format=log_format,
        log_level=log_level,
    )
    code = fast.serve(fast.Arguments(None if config is None else str(config), flags, reset_wal), os.environ)
    if code:
        raise typer.Exit(Exit.FAILED if code < 0 else code)
