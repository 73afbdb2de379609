"""Apache Kafka: one KRaft node from the artifacts on Maven Central, with its usual heap of 1 GB and its default settings."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from bench.peers.base import Flush, KafkaProtocolPeer, free_port, run_tool
from penstock.address import Address
from penstock.bench.faults import BenchError

_DIST = Path(__file__).with_name("kafka_dist")
_CACHE = Path(__file__).resolve().parents[1] / ".cache"
_JAVA_MAJOR_MIN = 17
# What Kafka's own start script passes.
_JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]


def version() -> str:
    """The version that the pom names."""
    found = re.search(r"<kafka.version>(.+?)</kafka.version>", (_DIST / "pom.xml").read_text())
    assert found
    return found[1]


class Kafka(KafkaProtocolPeer):
    """A Kafka broker that is its own controller."""

    name = "kafka"
    title = f"Apache Kafka {version()}"
    ready_s_max = 180.0
    _jars: ClassVar[Path] = _CACHE / f"kafka-{version()}"

    def __init__(self, home: Path, flush: Flush) -> None:
        super().__init__(home, flush)
        self.address = Address("127.0.0.1", free_port())
        self.controller = Address("127.0.0.1", free_port())
        self.cluster_id = os.urandom(16).hex()[:22]

    @classmethod
    def why_missing(cls) -> str | None:
        """Fetches the artifacts on the first run."""
        if not shutil.which("java"):
            return "no java on the PATH: install a Java 17 runtime"
        banner = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
        major = re.search(r'version "(\d+)', banner)
        if not major or int(major[1]) < _JAVA_MAJOR_MIN:
            return f"Kafka 4 needs Java {_JAVA_MAJOR_MIN} or newer, this is: {banner.splitlines()[0] if banner else 'unknown'}"
        if cls._jars.is_dir():
            return None
        if not shutil.which("mvn"):
            return "no mvn on the PATH to fetch Kafka with: install Maven"
        partial = cls._jars.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        try:
            run_tool(["mvn", "-q", "-B", "-f", str(_DIST / "pom.xml"), *goal], "fetch Kafka with Maven")
        except BenchError as error:
            return str(error)
        partial.rename(cls._jars)
        return None

    def settings(self) -> dict[str, str]:
        """What is not Kafka's default."""
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self.controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.home / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            # Removed topics leave the disk soon, so that one row's files are not written back during the next.
            "log.segment.delete.delay.ms": "1000",
        }
        if self.flush is Flush.SYNC:
            settings["log.flush.interval.messages"] = "1"
        return settings

    def before_first_start(self) -> None:
        """Write the settings and format the storage."""
        path = self.home / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings().items()))
        run_tool(
            [*self._java([]), "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(path)],
            "format Kafka's storage",
        )

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Kafka with as many open files as this machine allows."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return [*self._java(_JVM), "kafka.Kafka", str(self.home / "server.properties")], {}

    def _java(self, options: list[str]) -> list[str]:
        return ["java", *options, f"-Dlog4j2.configurationFile={_DIST / 'log4j2.yaml'}", "-cp", f"{self._jars}/*"]

    def bootstrap(self) -> Address:
        """Its client listener."""
        return self.address
