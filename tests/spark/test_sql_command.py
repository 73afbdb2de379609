"""``penstock sql`` as a process of its own: what it prints, and what is left of it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.marked import Mark
from tests.support.waiting import eventually

SECONDS = 300.0


def test_a_query_leaves_neither_a_process_nor_a_file_behind(bootstrap, topic, produce) -> None:
    produce(topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    # Sockets have short paths only, and Java has a temporary folder of its own.
    folder, mark = Path(tempfile.mkdtemp(prefix="ps", dir="/tmp")), Mark()
    query = f"SELECT key, count(*) AS n FROM `{topic}` GROUP BY key ORDER BY key"
    options = ["--output", "csv", "--master", "local[2]", "--conf", f"spark.local.dir={folder}"]
    options += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={folder}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "sql", query, *options],
            env={**os.environ, **mark.environment, "PENSTOCK_BOOTSTRAP": bootstrap, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["key,n", "a,2", "b,1"]
        assert done.stderr == "starting Spark...\n"
        eventually(lambda: not mark.pids(), SECONDS, "Java and the workers are gone")
        assert list(folder.iterdir()) == []
    finally:
        mark.kill()
        shutil.rmtree(folder)
