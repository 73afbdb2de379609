"""``penstock config``: what the broker would run with, and where each value comes from."""

import os
from typing import Annotated

import typer

from penstock.cli.options import Output
from penstock.cli.output import Format, Row, emit
from penstock.cli.serve_command import (
    Advertise,
    Cluster,
    Config,
    DataDir,
    Etcd,
    EtcdCa,
    EtcdCert,
    EtcdKey,
    Grpc,
    Http,
    Kafka,
    LogFormatOption,
    LogLevelOption,
    NodeIdOption,
    Peer,
    Rack,
    Tcp,
    flags_given,
)

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


def mount(root: typer.Typer) -> None:
    """Add the noun."""
    root.add_typer(app, name="config")


@app.command("show")
def show(
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
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show each value and where it comes from.

    Takes the flags of serve, and reads the same environment.
    """
    from penstock.config import load
    from penstock.config.describe import describe
    from penstock.config.loading import show as as_toml
    from penstock.settings import SourceKind

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
    rows: list[Row] = [
        {
            "name": setting.path,
            "value": setting.plain,
            "source": str(setting.source),
            "layer": setting.source.kind.value,
            "default": setting.default,
            "description": setting.description,
        }
        for setting in describe(load(config, os.environ, flags))
        if not changed or setting.source.kind is not SourceKind.DEFAULT
    ]
    if output is Format.TABLE:
        # As they are written in a configuration, to be copied from here.
        rows = [{**row, "value": as_toml(row["value"])} for row in rows]
    emit(rows, ["name", "value", "source"], output, nothing="every value is a default")


@app.command("example")
def example() -> None:
    """Print a file with every setting.

    Each with its default and what it is for, commented out.
    """
    from penstock.config.describe import example_toml

    print(example_toml(), end="")
