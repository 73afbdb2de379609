"""Ten million records through an archive: all of them arrive, and no Python process grows with them."""

import os
import threading
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from penstock.client import Admin, Cluster
from penstock.client.batches import BatchSender
from penstock.limits import MIB
from penstock.records.columnar import encode
from penstock.testing.process import BrokerProcess
from tests.spark.archiving import PipelineProcess, peak_bytes

pytestmark = pytest.mark.timeout(600)

RECORDS = int(os.environ.get("PENSTOCK_TEST_ARCHIVE_RECORDS", "10_000_000"))
PARTITIONS = 2
CHUNK = 50_000
VALUE_BYTES = 100
BATCH_OFFSETS = 5_000_000
WORKER_BYTES_MAX = 400 * MIB
"""A batch is 250 MB of values for each worker, a partition 500 MB: a worker that gathered them would not fit."""
SECONDS_MAX = 600


@pytest.fixture
def broker_process(tmp_path):
    with BrokerProcess(tmp_path / "data", {"log.flush": "os"}) as broker:
        yield broker


def fill(bootstrap, topic) -> None:
    """As fast as the broker takes them: each value is the offset, filled up."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(
            topic, partitions=PARTITIONS, configs={"max.message.bytes": str(16 * MIB), "retention.ms": "-1"}
        )
        with BatchSender(cluster) as sender:
            for first in range(0, RECORDS // PARTITIONS, CHUNK):
                count = min(CHUNK, RECORDS // PARTITIONS - first)
                numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
                value = pc.utf8_lpad(numbers, VALUE_BYTES, padding="0")
                moment_ms = 1_767_225_600_000 + first
                for partition in range(PARTITIONS):
                    for batch in encode(
                        value=value, timestamps_ms=moment_ms, batch_bytes_max=15 * MIB, batch_records_max=CHUNK
                    ):
                        sender.send(topic, partition, batch, int.from_bytes(batch[57:61], "big"))


class Peaks(threading.Thread):
    """Looks at the memory of a pipeline's Python processes until it ends."""

    def __init__(self, process) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._ended = threading.Event()
        self.peaks = Counter()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            for pid in self._process.pythons():
                self.peaks[pid] = max(self.peaks[pid], peak_bytes(pid))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def test_ten_million_records_are_archived_once_in_bounded_memory(broker_process, tmp_path) -> None:
    fill(broker_process.bootstrap, "many")
    lake, log = tmp_path / "lake", tmp_path / "archive.log"
    words = ["archive", "many", "--to", str(lake), "--bootstrap", broker_process.bootstrap, "--once"]
    words += ["--rate", str(BATCH_OFFSETS), "--state-dir", str(tmp_path / "state"), "--master", "local[2]"]
    words += ["--conf", "spark.driver.memory=1g"]
    # This Java lives long enough to be worth compiling well, unlike those of the other tests.
    with PipelineProcess(*words, log=log, environment={"JDK_JAVA_OPTIONS": "-XX:+UseSerialGC"}) as process:
        watching = Peaks(process)
        watching.start()
        assert process.wait(SECONDS_MAX) == 0, log.read_text()[-3000:]
        watching.stop()
    assert len(watching.peaks) >= 3, "the driver, Spark's daemon and a worker were seen"
    assert max(watching.peaks.values()) < WORKER_BYTES_MAX, watching.peaks
    each = RECORDS // PARTITIONS
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table(columns=["partition", "offset"])
    found = table.group_by("partition").aggregate(
        [("offset", "count"), ("offset", "sum"), ("offset", "min"), ("offset", "max")]
    )
    rows = sorted(found.to_pylist(), key=lambda row: row["partition"])
    assert rows == [
        {
            "partition": partition,
            "offset_count": each,
            "offset_sum": each * (each - 1) // 2,
            "offset_min": 0,
            "offset_max": each - 1,
        }
        for partition in range(PARTITIONS)
    ]
    assert not list(lake.rglob("*.staged"))
