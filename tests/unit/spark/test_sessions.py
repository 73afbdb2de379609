import subprocess
import sys

import pytest

from penstock.spark.sessions import as_setting, is_local, spark_name, wants_socket_folder


@pytest.mark.parametrize(
    ("keyword", "name"),
    [
        ("spark_sql_shuffle_partitions", "spark.sql.shuffle.partitions"),
        ("spark.some_thing", "spark.some_thing"),
        ("spark_sql_session_timeZone", "spark.sql.session.timeZone"),
    ],
)
def test_a_keyword_names_a_setting(keyword, name) -> None:
    assert spark_name(keyword) == name


def test_a_truth_is_written_as_spark_reads_it() -> None:
    assert [as_setting(True), as_setting(2), as_setting("1g")] == ["true", "2", "1g"]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]"])
def test_a_local_master(master) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["local-cluster[2,1,512]", "spark://h:7077", "yarn", "k8s://https://h", "sc://h"])
def test_a_master_with_executors_elsewhere(master) -> None:
    assert not is_local(master)


ENABLED = {"spark.python.unix.domain.socket.enabled": "true"}


@pytest.mark.parametrize(
    ("master", "settings", "is_wanted"),
    [
        ("local[2]", ENABLED, True),
        ("local[2]", ENABLED | {"spark.python.unix.domain.socket.dir": "/run/mine"}, False),
        ("local[2]", {"spark.python.unix.domain.socket.enabled": "false"}, False),
        ("spark://h:7077", ENABLED, False),
    ],
)
def test_sockets_have_a_folder_of_their_own_where_all_of_spark_is_on_this_machine(
    master, settings, is_wanted, monkeypatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert wants_socket_folder(master, settings) is is_wanted
    # Started by spark-submit, which may have named another master.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not wants_socket_folder(master, settings)


def test_without_pyspark_the_text_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from penstock.spark import session; session()"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "SparkMissing: PySpark is not installed: pip install 'penstock[spark]'" in answer.stderr
