"""A ready SparkSession: it finds Java, uses this Python in the workers, registers the source, and sends executors what they need.

Settings are Spark's own. These defaults differ from Spark's:

- The driver logs only errors, and a query that fails is raised but not also logged.
- Python workers use Unix sockets (a quarter more rows per second; with a local master in a folder that is removed at the end), and filters
  reach the source.
- With a local master, Spark's ports are on loopback, there is no web page, and a shuffle has as many partitions as there are cores: each
  of the usual 200 costs a task in every batch of a stream.

The time zone is that of the machine, as in every session.
"""

import importlib.util
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from penstock.spark import gateway, java, shipped, shipping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
CONNECT_SCHEME: Final = "sc://"
_SUBMITTED: Final = gateway.PORT
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_ON_A_SERVER: Final[dict[str, object]] = {"spark.sql.python.filterPushdown.enabled": True}
"""Settings of a session. Those of the server belong to its owner."""
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_SOCKET_FOLDER: Final = "spark.python.unix.domain.socket.dir"
_EVERYWHERE: Final[dict[str, object]] = _ON_A_SERVER | {_SOCKETS: True}
_EXTRA: Final = ("pyspark", "pyarrow")
_MISSING: Final = "PySpark is not installed: pip install 'penstock[spark]', in a clone pip install '.[spark]'"
_LOGGERS_OF_FAILURES: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SparkMissing(ImportError):
    """PySpark is not installed."""


def need_spark() -> None:
    """Raise :class:`SparkMissing` if the extra is not installed, before any other work."""
    if any(importlib.util.find_spec(name) is None for name in _EXTRA):
        raise SparkMissing(_MISSING)


def session(app_name: str = "penstock", master: str = LOCAL_MASTER, **conf: object) -> "SparkSession":
    """The session of this process, created if there is none.

    ``master`` is ``local[*]``, ``spark://host:port``, ``yarn``, ``k8s://...``, or ``sc://host:port`` for Spark Connect.
    ``conf`` are Spark settings, with ``_`` for the dots of their names or as they are:
    ``session("app", spark_sql_shuffle_partitions=4)``, ``session("app", **{"spark.executor.memory": "2g"})``.
    None keeps Spark's default. In a session that exists already, only the settings that can change do.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(_MISSING) from error
    given = {spark_name(name): value for name, value in conf.items()}
    existing = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName(app_name)
    if existing is None and master.startswith(CONNECT_SCHEME):
        builder = builder.remote(master)
        settings = _ON_A_SERVER | given
    elif existing is None:
        _choose_python(given)
        settings = _EVERYWHERE | given
        if _SUBMITTED not in os.environ:
            java.provide()
            settings = _with_quiet_driver(settings)
        # A program started by spark-submit has its master from there, and a master set in the program would override it.
        if _SUBMITTED not in os.environ or master != LOCAL_MASTER:
            builder = builder.master(master)
            settings = (_on_this_machine() if is_local(master) else {}) | settings
    else:
        settings = given
    texts = {name: as_setting(value) for name, value in settings.items() if value is not None}
    for name, value in texts.items():
        builder = builder.config(name, value)
    is_driver_here = existing is None and not master.startswith(CONNECT_SCHEME)
    with _found_by_the_driver(is_driver_here and not is_local(master)):
        if is_driver_here:
            named = {"spark.app.name": app_name, "spark.master": master}
            gateway.open_gateway(named | texts, is_local=is_local(master))
            if wants_socket_folder(master, texts):
                builder = builder.config(_SOCKET_FOLDER, gateway.socket_folder())
        spark: SparkSession = builder.getOrCreate()
    _be_quiet()
    make_known(spark)
    return spark


def wants_socket_folder(master: str, settings: Mapping[str, str]) -> bool:
    """Whether sockets get a folder of their own, because a Spark that is not stopped leaves its socket in the temporary folder.

    Executors on other machines do not have the folder; a program started by spark-submit may have such executors.
    """
    is_here = is_local(master) and _SUBMITTED not in os.environ
    return is_here and settings.get(_SOCKETS) == "true" and _SOCKET_FOLDER not in settings


def make_known(spark: "SparkSession") -> None:
    """Register ``format("penstock")`` and ``format("penstock-lake")`` in any session, also for executors on other machines."""
    from penstock.spark.datasource import PenstockDataSource
    from penstock.spark.lake.datasource import LakeDataSource

    if shipping.is_remote(spark) or not is_local(str(spark.sparkContext.master)):
        shipping.ship(spark)
    spark.dataSource.register(PenstockDataSource)
    spark.dataSource.register(LakeDataSource)


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process."""
    return master == "local" or master.startswith("local[")


def spark_name(name: str) -> str:
    """The name of a setting from a keyword: underscores become dots, unless there are dots already."""
    return name if "." in name else name.replace("_", ".")


def as_setting(value: object) -> str:
    """A value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _found_by_the_driver(sent: bool) -> Iterator[None]:
    """Let the driver's own Python workers find Penstock too, although they run the cluster's Python.

    Spark gives the archive to workers that plan a batch, but not to those that plan a stream. These inherit the environment of Java.
    """
    added: dict[str, str] = {}
    if sent:
        added["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(shipping.package())]))
        folders = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        added[shipped.DRIVERS_LIBRARIES] = os.pathsep.join(folders)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _choose_python(given: dict[str, object]) -> None:
    # By default Spark runs "python3", which may be another Python without this package.
    chosen = given.get("spark.pyspark.python")
    if chosen is not None:
        os.environ["PYSPARK_PYTHON"] = str(chosen)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _with_quiet_driver(settings: dict[str, object]) -> dict[str, object]:
    given = str(settings.get(_JAVA_OPTIONS) or "")
    if "log4j" in given or "spark.log.level" in settings or _has_own_logging():
        return settings
    # In a file rather than with spark.log.level, because Spark logs most before it reads its settings.
    quiet = files("penstock.spark") / "log4j2.properties"
    return settings | {_JAVA_OPTIONS: f'{given} "-Dlog4j2.configurationFile={quiet}"'.strip()}


def _has_own_logging() -> bool:
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    return os.path.exists(os.path.join(folder, "log4j2.properties"))


def _on_this_machine() -> dict[str, object]:
    return {
        "spark.ui.enabled": False,
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": max(2, os.cpu_count() or 2),
    }


def _be_quiet() -> None:
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_FAILURES:
        # Created by Spark's class: a plain logger of this name would break Spark's own calls.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
