"""``make demo``: a shop on Penstock and Spark, from nothing to a chart in about a minute; removes everything that it created.

A broker on free ports with its data in a temporary folder; orders that workers bill from a queue, with retries and dead letters; a Spark pipeline
(``orders.toml``, run by ``penstock pipeline run``) that counts what was paid into a topic and a Parquet lake. Ctrl-C ends it at any time.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from examples.demo.picture import from_topic, orders_in_lake, show_products, show_windows
from examples.demo.pipeline import FILE, Pipeline, PipelineFailed
from examples.demo.shop import (
    ATTEMPTS_MAX,
    BILLING,
    ORDERS,
    PARTITIONS,
    PAYMENTS,
    SALES,
    Counts,
    Worker,
    close_the_till,
    sell,
    watch,
)
from penstock.cli.output import print_table
from penstock.client import Admin, Cluster, QueueAdmin
from penstock.testing.process import BrokerProcess

WORKERS: Final = 3
SPARK_SECONDS_MAX: Final = 240.0
QUEUE_SECONDS_MAX: Final = 60.0
_INTERRUPTED: Final = 130
_interrupted: Final = threading.Event()


class Demo:
    """The demo, step by step. It always stops what it started."""

    def __init__(self, folder: Path, orders: int, seconds: float) -> None:
        self.folder = folder
        self._orders = orders
        self._seconds = seconds
        self._stop = threading.Event()
        self._counts = Counts()
        self._began = time.monotonic()
        self._scene = 0
        self.bootstrap = self.http = ""

    def play(self, *, keep: bool) -> None:
        """All of it."""
        with self._broker(), self._pipeline() as pipeline:
            self._sell_and_bill()
            self._show_dead_letters()
            self._wait_for_spark(pipeline)
            if keep:
                self._stay()

    # -- scenes

    @contextmanager
    def _broker(self) -> Iterator[None]:
        self._tell("A broker starts, on free ports, with its data in a temporary folder.")
        broker = BrokerProcess(self.folder / "data", http="127.0.0.1:0").start()
        try:
            self.bootstrap, self.http = broker.addresses["kafka"], broker.addresses["http"]
            self._add(f"Kafka protocol on {self.bootstrap}, HTTP on http://{self.http}.")
            with Cluster(self.bootstrap) as cluster:
                for topic in (ORDERS, PAYMENTS):
                    Admin(cluster).create_topic(topic, partitions=PARTITIONS)
                Admin(cluster).create_topic(SALES, partitions=1)
            yield
        finally:
            self._stop.set()
            if broker.running:
                broker.stop()

    @contextmanager
    def _pipeline(self) -> Iterator[Pipeline]:
        self._tell(f"Spark starts in the background and runs {_shown(FILE)}:")
        self._add(
            f"sales by product in windows of five seconds, from topic {PAYMENTS} into topic {SALES} and a Parquet lake."
        )
        pipeline = Pipeline(self.bootstrap, self.folder)
        pipeline.start()
        try:
            yield pipeline
        finally:
            pipeline.stop()

    def _sell_and_bill(self) -> None:
        self._tell(f"A shop opens and sends {self._orders} orders in {self._seconds:.0f} s to topic {ORDERS}.")
        self._add(
            f"{WORKERS} workers bill them from a queue. Each order is leased to one worker, with at most {ATTEMPTS_MAX} attempts."
        )
        workers = [
            Worker(f"worker-{number + 1}", self.http, self._counts, self._stop, walks_away=number == WORKERS - 1)
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        sell(self.bootstrap, self._orders, self._seconds, self._counts, self._stop)
        with QueueAdmin(self.http) as admin:
            watch(
                partial(self._queue_is_done, admin),
                QUEUE_SECONDS_MAX,
                self._stop,
                "all orders are billed or dead letters",
            )
        counts = self._counts
        self._add(
            f"{counts.paid} of {counts.ordered} orders are paid; {counts.attempts_failed} attempts failed and were retried or given up."
        )
        if counts.abandoned:
            self._add(
                f"{workers[-1].name} disappeared while it held orders: their leases expired, and others billed them."
            )

    def _queue_is_done(self, admin: QueueAdmin) -> bool:
        if self._counts.failures:
            raise self._counts.failures[0]
        return admin.queue(ORDERS, BILLING).lag == 0

    def _show_dead_letters(self) -> None:
        with QueueAdmin(self.http) as admin:
            plan = admin.plan(ORDERS)
        self._tell(f"{plan.count} orders could not be billed. They became dead letters, with the reason:")
        print_table([{"reason": each.reason, "orders": each.count} for each in plan.reasons], ["reason", "orders"])

    def _wait_for_spark(self, pipeline: Pipeline) -> None:
        self._tell("The shop closes; Spark finishes the last windows ...")
        close_the_till(self.http, timedelta(minutes=1))
        counted = partial(self._all_is_counted, pipeline)
        watch(counted, SPARK_SECONDS_MAX, self._stop, "Spark has counted all paid orders")
        pipeline.stop()
        sales = from_topic(self.bootstrap, SALES)
        orders = sum(sale.orders for sale in sales)
        files = len(list(pipeline.lake.glob("*.parquet")))
        self._add(
            f"{orders} paid orders were counted, each once, in topic {SALES} and in the lake ({files} Parquet files)."
        )
        self._tell(f"What sold, from topic {SALES}:")
        show_products(sales)
        print("\nRevenue by window:\n")
        show_windows(sales)

    def _all_is_counted(self, pipeline: Pipeline) -> bool:
        trouble = pipeline.keep_running()
        if trouble is not None:
            self._add(f"Spark failed ({trouble}) and is restarted: it continues from its checkpoint.")
        paid = self._counts.paid
        in_topic = sum(sale.orders for sale in from_topic(self.bootstrap, SALES))
        return in_topic == paid and orders_in_lake(pipeline.lake) == paid

    def _stay(self) -> None:
        """Show what still runs and how to inspect and stop it; wait for Ctrl-C, which is not a failure."""
        self._tell("The broker and the workers keep running until you press Ctrl-C here:")
        self._add(
            f"   the broker    Kafka protocol on {self.bootstrap}, HTTP on http://{self.http} (interactive page: /docs)"
        )
        self._add(f"   the workers   in this process; they bill new orders in topic {ORDERS}, including redriven ones")
        self._add(f"Spark has exited. Its results are in topic {SALES} and in {self.folder / 'lake'}.")
        self._add(f"In another terminal, in {Path.cwd()}:")
        self._add(f"   export PENSTOCK_BOOTSTRAP={self.bootstrap} PENSTOCK_HTTP={self.http}")
        for command in (
            "topic ls",
            "dlq ls",
            f"consume {PAYMENTS} --last 5",
            f"sql --json 'SELECT city, count(*) FROM {PAYMENTS} GROUP BY city'",
            f"pipeline redrive -t {ORDERS} --where \"reason = 'card expired'\" --dry-run",
        ):
            self._add(f"   {_penstock()} {command}")
        self._add(
            f"To stop, press Ctrl-C here, or run kill {os.getpid()} there. The broker then stops, and {self.folder} is removed with all data."
        )
        with suppress(KeyboardInterrupt):
            self._stop.wait()

    # -- telling

    def _tell(self, text: str) -> None:
        self._scene += 1
        print(f"\n{self._scene}. {text}   [{time.monotonic() - self._began:.0f} s]", flush=True)

    def _add(self, text: str) -> None:
        print(f"   {text}", flush=True)


def _penstock() -> str:
    """The command as a user types it here: by its path, unless the shell finds the same one."""
    ours = Path(sys.executable).with_name("penstock")
    found = shutil.which("penstock")
    return "penstock" if found is not None and Path(found) == ours else _shown(ours)


def _shown(path: Path) -> str:
    """A path as a user types it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    if not _interrupted.is_set():
        _interrupted.set()
        # Safe in a signal handler, unlike print. What was started takes some seconds to end.
        os.write(2, b"\nstopping...\n")
    raise KeyboardInterrupt


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="make demo", description="A shop on Penstock and Spark, from nothing to a chart."
    )
    parser.add_argument("--orders", type=int, default=400, help="number of orders (400)")
    parser.add_argument("--seconds", type=float, default=25.0, help="duration in seconds (25)")
    parser.add_argument("--keep", action="store_true", help="keep the broker and the workers running until Ctrl-C")
    told = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    print("Penstock demo: orders through a queue, failures into dead letters, sales by window with Spark.")
    try:
        Demo(folder, max(8, told.orders), max(0.1, told.seconds)).play(keep=told.keep)
    except KeyboardInterrupt:
        print("\nInterrupted; everything is stopped.")
        return _INTERRUPTED
    except (PipelineFailed, TimeoutError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        "\nEverything is stopped, and the temporary folder is removed. What to try next:\n"
        "   make demo ARGS=--keep            the same, but the broker and the workers keep running until Ctrl-C\n"
        f"   {_shown(FILE)}       change the pipeline: another window, another column, a Delta lake\n"
        "   penstock serve                   your own broker; then read docs/spark.md"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
