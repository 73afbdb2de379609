"""Power cuts under a running broker with every kind of client: nothing that was acknowledged is lost or doubled.

The broker's data directory is on a file system that loses what was not synced (``tests/support/powerfs``). Clients run through
all cuts. ``CRASH_ROUNDS=200 make test-crash ARGS="-k power_cuts"`` for a long run, ``POWER_SEED=N`` to repeat the choices of
an earlier one.
"""

import contextlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.testing.process import READY_SECONDS_MAX, BrokerProcess
from tests.crash.conftest import ROUNDS, SETTINGS
from tests.crash.power_load import Load
from tests.support.mounts import NotAllowed
from tests.support.powerfs.disk import PowerDisk

SEED = int(os.environ.get("POWER_SEED", random.randrange(2**32)))
CUTS = ROUNDS if "CRASH_ROUNDS" in os.environ else 4
"""Few unless asked for more: each takes some seconds."""
CUTS_PER_LIFE = 25
"""Then another broker begins on an empty disk, so that there is not too much to read after each cut."""
OPERATIONS_MAX = {"any": 600, "sync": 20}
"""Of a start: a cut that is to meet it comes before so many."""


def cut_at_start(broker: BrokerProcess, disk: PowerDisk, rng: random.Random) -> None:
    """The power goes again while the broker starts."""
    kind = rng.choice(sorted(OPERATIONS_MAX))
    count = rng.randrange(1, OPERATIONS_MAX[kind])
    with ThreadPoolExecutor(1) as pool:
        cut = pool.submit(disk.cut_power, rng.randrange(2**32), kind, count, READY_SECONDS_MAX / 2)
        with contextlib.suppress(RuntimeError):  # it ended, because it cannot read or write
            broker.start()
        cut.result()
    broker.kill()
    disk.power_back()


@pytest.mark.timeout(180 + 30 * CUTS)
def test_power_cuts_lose_and_double_nothing_acknowledged(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    for life, first in enumerate(range(0, CUTS, CUTS_PER_LIFE)):
        try:
            disk = PowerDisk(tmp_path, f"disk{life}")
        except NotAllowed as reason:
            pytest.skip(f"no file system of our own here: {reason}")
        try:
            cut_again_and_again(disk, min(CUTS_PER_LIFE, CUTS - first), rng)
        finally:
            disk.close()


def cut_again_and_again(disk: PowerDisk, cuts: int, rng: random.Random) -> None:
    """One broker from its first start on."""
    # Small segments, so that a cut meets rolls, new files and compaction.
    settings = {**SETTINGS, "topic_defaults.segment.bytes": 20_000}
    broker = BrokerProcess(disk.path / "data", settings, http="127.0.0.1:0")
    broker.log_file = disk.path.with_suffix(".stderr")
    with broker:
        load = Load(broker, rng.randrange(2**32))
        number = 0
        while cuts > 0:
            load.proceed(number, rng)
            kind, count = rng.choice(["any", "any", "sync", "names"]), rng.choice([0, rng.randrange(1, 40)])
            where = f"{disk.path.name}, round {number} ({kind} {count}), seed {SEED}"
            begun = load.begin_changes(number)
            with load.ledger.losing_power():
                disk.cut_power(rng.randrange(2**32), kind, count)
                broker.kill()
            cuts -= 1
            del begun
            disk.power_back()
            if cuts and rng.random() < 0.25:
                where += ", again at the start"
                with load.ledger.losing_power():
                    cut_at_start(broker, disk, rng)
                cuts -= 1
            broker.start()
            try:
                load.check(number)
            except Exception as error:
                raise AssertionError(f"{where}: {error}\n{broker.log_text()[-6000:]}") from error
            print(where, flush=True)
            number += 1
        load.finish()
        assert broker.stop() == 0
