"""Spark's Java, started by Penstock rather than by PySpark, for two reasons.

- A signal that stops the driver must not stop Java or a Python worker first: the driver needs them to finish the current batch. ``timeout`` and a
  terminal signal the whole process group, systemd every process of a service. So Java runs in a session of its own, and ignores
  these signals. It starts with SIGINT and SIGTERM blocked too, and its children inherit that: Spark's daemons and workers set handlers,
  which would end ignoring them. All of them end when the driver ends, for any reason, because the pipe to Java's standard input
  closes, and then theirs.
- Python workers start faster with the installed PySpark than with the archive of it that Spark puts before it on their path: Python
  stores no compiled form of what it imports from an archive, and each query starts several workers.

On disk: a Spark home in the user's cache, a folder of links to all that the installed PySpark contains except ``python``, where the
archive is. It is named after its links.
"""

import hashlib
import os
import shlex
import signal
import site
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.spark.cache import made_once

CONNECTION_FILE: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The variable that names the file in which Java says where it listens."""
PORT: Final = "PYSPARK_GATEWAY_PORT"
SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105  the name of a variable
ASK_INTERVAL_S: Final = 0.02
_IGNORING_SIGNALS: Final = ("/bin/sh", "-c", "trap '' HUP INT TERM; exec \"$@\"", "sh")
"""What a shell ignores, the program that takes its place ignores too."""
_LEFT_OUT: Final = frozenset({"python"})
_SOCKET_FOLDER: Final = "penstock-"
_SOCKET_FOLDER_LENGTH_MAX: Final = 60
"""The path of a socket holds about 100 bytes, and Spark's names take 42 of them."""


def open_gateway(settings: Mapping[str, str], *, is_local: bool) -> None:
    """Start Java with these Spark settings, and let PySpark use it, unless PySpark has one already."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or PORT in os.environ:  # noqa: SLF001  there is no public name for it
        return
    process, port, secret = _start(settings, is_local=is_local)
    # With these variables, PySpark uses a Java that runs. Another session of this process must not take it for spark-submit's.
    os.environ[PORT], os.environ[SECRET] = str(port), secret
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        gateway.proc = process
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
    except BaseException:
        process.kill()
        raise
    finally:
        del os.environ[PORT], os.environ[SECRET]


def socket_folder() -> str:
    """A new folder for the sockets between Java and Python. Java removes it when it ends, even if the driver was killed."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001
    jvm = SparkContext._jvm  # noqa: SLF001
    assert jvm is not None
    folder = Path(tempfile.gettempdir()) / f"{_SOCKET_FOLDER}xxxxxxxx"
    where = None if len(os.fsencode(folder)) <= _SOCKET_FOLDER_LENGTH_MAX else "/tmp"  # noqa: S108  it makes a folder of its own there
    made = tempfile.mkdtemp(prefix=_SOCKET_FOLDER, dir=where)
    jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(made))
    return made


def _start(settings: Mapping[str, str], *, is_local: bool) -> tuple[subprocess.Popen[bytes], int, str]:
    """Java's process, and the port and the secret to speak to it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    arguments = [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as folder:
        connection = Path(folder) / "connection"
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", CONNECTION_FILE: str(connection)}
        if is_local and _workers_find_pyspark(home):
            environment["SPARK_HOME"] = str(home_without_archives(home))
        with _blocked(signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(  # noqa: S603  our own program and arguments
                [*_IGNORING_SIGNALS, str(home / "bin" / "spark-submit"), *arguments, *shlex.split(submitted)],
                stdin=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        try:
            while not connection.exists():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ASK_INTERVAL_S)
                    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            answer = connection.read_bytes()
        except BaseException:
            process.kill()
            raise
    port, length = struct.unpack_from("!ii", answer)
    return process, port, answer[8 : 8 + length].decode()


@contextmanager
def _blocked(*numbers: int) -> Iterator[None]:
    """Block signals in this thread; one that arrives meanwhile is handled afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _workers_find_pyspark(home: Path) -> bool:
    """Whether this Python, in another process, imports the PySpark that ``home`` is."""
    folders = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")} | {site.getusersitepackages()}
    installed = home.parent in {Path(folder) for folder in folders} and home.name == "pyspark"
    return installed and "SPARK_HOME" not in os.environ and os.environ.get("PYSPARK_PYTHON") == sys.executable


def home_without_archives(home: Path) -> Path:
    """A Spark home with all of ``home`` except the archives of PySpark."""
    names = sorted(path.name for path in home.iterdir() if path.is_dir() and path.name not in _LEFT_OUT)
    digest = hashlib.sha256("\0".join((str(home), *names)).encode())

    def link(folder: Path) -> None:
        for name in names:
            (folder / name).symlink_to(home / name)

    return made_once(f"spark-{digest.hexdigest()[:16]}", link)
