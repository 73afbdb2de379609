"""``penstock serve`` as Typer knows it: what ``--help`` and the shell's completion show. Runs the same :mod:`penstock.cli.serve`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import serve as fast
from penstock.cli.failures import Exit
from penstock.settings import LogFormat, LogLevel

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="Configuration; see penstock config show.")
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where records are kept.  [default: ./data]")
]
Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Kafka protocol, or off.  [default: 127.0.0.1:9092]")
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="HTTP, or off.  [default: 127.0.0.1:8080]")
]
Tcp = Annotated[
    str | None,
    typer.Option("--tcp", metavar="HOST:PORT", help="JSON lines over TCP; off disables it."),
]
Grpc = Annotated[str | None, typer.Option("--grpc", metavar="HOST:PORT", help="gRPC.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="The cluster this node belongs to; without: alone.")
]
NodeIdOption = Annotated[
    str | None,
    typer.Option(
        "--node-id", metavar="N", help="This node's number, its own in the cluster.  [default: 1; cluster only]"
    ),
]
Etcd = Annotated[
    str | None, typer.Option("--etcd", metavar="URL,URL", help="Where etcd is; https://... for TLS.  [cluster only]")
]
EtcdCa = Annotated[str | None, typer.Option("--etcd-ca", metavar="FILE", help="Certificates that etcd is trusted by.")]
EtcdCert = Annotated[str | None, typer.Option("--etcd-cert", metavar="FILE", help="This node's certificate for etcd.")]
EtcdKey = Annotated[str | None, typer.Option("--etcd-key", metavar="FILE", help="The key of that certificate.")]
Advertise = Annotated[
    str | None, typer.Option("--advertise", metavar="HOST", help="What nodes and clients connect to.  [cluster only]")
]
Peer = Annotated[
    str | None, typer.Option("--peer", metavar="HOST:PORT", help="For the other nodes.  [default: 127.0.0.1:9093]")
]
Rack = Annotated[
    str | None, typer.Option("--rack", metavar="NAME", help="Where the node stands; replicas go to different racks.")
]
LogFormatOption = Annotated[LogFormat | None, typer.Option("--log-format", help="The log, on stderr.  [default: text]")]
LogLevelOption = Annotated[LogLevel | None, typer.Option("--log-level", help="The least to log.  [default: info]")]
ResetWal = Annotated[
    bool,
    typer.Option(
        "--reset-wal", help="Start empty: the data directory is moved aside to DIR.reset-TIME, never deleted."
    ),
]


def flags_given(**given: object) -> dict[str, str]:
    """The flags that were given, by the settings they are."""
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
    """Run the broker. Port 0 picks a free port; the line "penstock ready ..." on stdout says which.

    Every setting can also come from the file or the environment (PENSTOCK__SECTION__KEY); flags win.
    SIGTERM and SIGINT: it answers what is under way, syncs and exits 0.
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
    code = fast.serve(fast.ServeArguments(None if config is None else str(config), flags, reset_wal), os.environ)
    if code:
        raise typer.Exit(Exit.FAILED if code < 0 else code)
