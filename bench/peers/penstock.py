"""Penstock itself, as the command line starts it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.peers.base import KafkaProtocolPeer
from penstock.address import Address, parse_address
from penstock.bench.context import Endpoints
from penstock.bench.faults import BenchError

_COMMAND = Path(sys.executable).with_name("penstock")
_READY = re.compile(rb"^penstock ready (.+)$", re.MULTILINE)
_GATEWAYS = ("http", "tcp", "grpc")


class Penstock(KafkaProtocolPeer):
    """One node on its defaults, with only the Kafka gateway."""

    name = "penstock"
    title = "Penstock"
    others = "off"
    """Where the gateways beside Kafka's listen."""

    @classmethod
    def why_missing(cls) -> str | None:
        """It cannot run if the command does not."""
        if not _COMMAND.exists():
            return f"{_COMMAND} does not exist; run `pip install .` in this environment"
        done = subprocess.run([_COMMAND, "serve", "--help"], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`penstock serve` does not run: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        return None

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Serve on a free port."""
        arguments = [str(_COMMAND), "serve", "--data-dir", str(self.home / "data"), "--kafka", "127.0.0.1:0"]
        for gateway in _GATEWAYS:
            arguments += [f"--{gateway}", self.others]
        # Over HTTP the default is acks=leader; only acks=all guarantees that the record is on the disk.
        return arguments, {"PENSTOCK__LOG__FLUSH": self.flush.value, "PENSTOCK__HTTP__ACKS": "all"}

    def bootstrap(self) -> Address:
        """From its ready line."""
        return self.endpoints().kafka

    def endpoints(self) -> Endpoints:
        """From its ready line."""
        ready = _READY.search(self.log_path.read_bytes())
        if not ready:
            raise BenchError("Penstock is not ready yet")
        places = dict(place.split("=", 1) for place in ready[1].decode().split())
        # The line also names listeners with TLS, and warns if there is no security.
        listeners = ("kafka", *_GATEWAYS)
        found = {name: parse_address(text) for name, text in places.items() if name in listeners and text != "off"}
        return Endpoints(found["kafka"], *(found.get(name) for name in _GATEWAYS))


class PenstockWithGateways(Penstock):
    """The same with every gateway on."""

    others = "127.0.0.1:0"
