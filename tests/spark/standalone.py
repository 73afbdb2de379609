"""Spark's daemons on this machine, started from the pip package: a cluster's master and workers, a Spark Connect server.

Nothing is waited for by time: a daemon is ready when it says so in its log. ``bare_python`` is what a cluster has when nobody
installed Penstock there.
"""

import os
import subprocess
import sys
import sysconfig
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from penstock.spark import java
from tests.spark.archiving import command_of, parent_of

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
SPARKS_OWN = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six"}
FOR_CONNECT = {"grpc", "grpc_status", "google", "googleapis_common_protos", "zstandard"}


class Daemon:
    """One process of Spark's, and its log."""

    def __init__(self, main_class, *arguments, ready, env, cwd=None) -> None:
        program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
        self.log = []
        self._ready = ready
        self._is_ready = threading.Event()
        self.process = subprocess.Popen(
            [program, main_class, *arguments],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # To the end, or the daemon would block on a full pipe.
        for line in self.process.stdout:
            self.log.append(line)
            if self._ready in line:
                self._is_ready.set()
        self._is_ready.set()

    def wait(self):
        """The line that says that it is ready."""
        assert self._is_ready.wait(START_TIMEOUT_S), "".join(self.log)
        lines = [line for line in self.log if self._ready in line]
        assert lines, "".join(self.log)
        return lines[0]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        self.process.stdout.close()


def daemon_env(folder):
    """Loopback only, no fixed port, and a cache of its own."""
    return {
        **os.environ,
        "JAVA_HOME": java.find().home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


@dataclass
class Standalone:
    """A master and its workers."""

    url: str
    workers: list[Daemon]

    def executors(self):
        """The Java processes that run tasks at the moment, each started by one of the workers."""
        workers = {worker.process.pid for worker in self.workers}
        pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if parent_of(pid) in workers and "CoarseGrainedExecutorBackend" in command_of(pid)]


@contextmanager
def standalone_cluster(folder, workers=2):
    """A master that has its workers."""
    env = daemon_env(folder)
    with ExitStack() as stack:

        def start(main_class, *arguments, ready):
            daemon = Daemon(
                main_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments, ready=ready, env=env
            )
            stack.callback(daemon.stop)
            return daemon

        master = start("org.apache.spark.deploy.master.Master", ready="Starting Spark master at ")
        url = master.wait().split(" at ")[1].split()[0]
        started = [
            start(
                "org.apache.spark.deploy.worker.Worker",
                *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), url),
                ready="Successfully registered with master",
            )
            for number in range(workers)
        ]
        for worker in started:
            worker.wait()
        yield Standalone(url, started)


@contextmanager
def connect_server(folder, python, *settings):
    """The address of a Spark Connect server whose workers run ``python``."""
    server = Daemon(
        "org.apache.spark.deploy.SparkSubmit",
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *("--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false"),
        *(word for setting in settings for word in ("--conf", setting)),
        "spark-internal",
        ready="Spark Connect server started at:",
        env=daemon_env(folder) | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
        cwd=folder,
    )
    try:
        yield f"sc://127.0.0.1:{server.wait().strip().rsplit(':', 1)[1]}"
    finally:
        server.stop()


def bare_python(folder, has=frozenset(SPARKS_OWN)):
    """A Python of the same version that has what Spark needs and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    installed = sysconfig.get_path("purelib")
    for name in os.listdir(installed):
        if name.split(".")[0] in has:
            os.symlink(os.path.join(installed, name), os.path.join(site, name))
    found = subprocess.run([python, "-c", "import penstock"], capture_output=True, check=False)
    assert found.returncode != 0, "penstock is installed there"
    return python
