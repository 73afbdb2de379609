"""What runs is remembered on disk, also of those that were killed."""

import fcntl
import json
import os
import subprocess
import sys
from contextlib import ExitStack

import msgspec
import pytest

from penstock.spark.pipelines.errors import PipelineError, PipelineNotFoundError
from penstock.spark.pipelines.process import birth_of, lives, own_birth
from penstock.spark.pipelines.registry import PipelineState, QueryStatus, Registry, Run, state_folder


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "state")


@pytest.fixture
def start():
    """Start a Python program that waits; it is gone at the end."""
    with ExitStack() as started:

        def one(program, *arguments):
            child = subprocess.Popen(
                [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            started.enter_context(child)
            started.callback(child.kill)
            return child

        yield one


def a_run(**more):
    return Run(
        **(
            {
                "name": "orders",
                "kind": "steps",
                "pid": os.getpid(),
                "birth": own_birth(),
                "state": PipelineState.RUNNING,
            }
            | more
        )
    )


def test_a_run_is_read_as_it_was_saved(registry) -> None:
    run = a_run(queries=[QueryStatus(name="a", query_id="q", batch_id=3, lag=5)])
    registry.save(run)
    assert registry.load("orders") == run
    assert registry.all() == [run]
    assert [path.name for path in registry.folder.iterdir()] == ["orders.json"]


def test_looking_makes_no_folder(registry) -> None:
    assert registry.all() == []
    with pytest.raises(PipelineNotFoundError, match=rf"^Pipeline x does not exist in {registry.folder}$"):
        registry.load("x")
    assert not registry.folder.exists()


def test_the_error_for_an_unknown_name_lists_the_known_ones(registry) -> None:
    registry.save(a_run())
    with pytest.raises(PipelineNotFoundError, match="existing pipelines: orders"):
        registry.load("order")


def test_a_process_that_is_gone_failed(registry, start) -> None:
    child = start("input()")
    registry.save(a_run(pid=child.pid, birth=birth_of(child.pid)))
    assert registry.load("orders").state is PipelineState.RUNNING
    child.kill()
    child.wait()
    run = registry.load("orders")
    assert run.state is PipelineState.FAILED
    assert run.reason == (
        f"its process (pid {child.pid}) was killed or crashed; run it again to continue from its checkpoint"
    )


def test_a_zombie_is_dead(start) -> None:
    child = start("input()")
    birth = birth_of(child.pid)
    child.kill()
    # Dead, and nobody has asked for its end: only its parent could.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(child.pid, birth)
    child.wait()


def test_another_process_of_the_same_number_is_not_taken_for_it(registry) -> None:
    registry.save(a_run(birth="another boot/1"))
    assert registry.load("orders").state is PipelineState.FAILED


def test_how_a_run_ended_stays_though_its_process_is_gone(registry) -> None:
    registry.save(a_run(birth="gone", state=PipelineState.STOPPED))
    assert registry.load("orders").state is PipelineState.STOPPED


def test_a_name_is_held_by_one_run_at_a_time(registry) -> None:
    registry.save(a_run(pid=4242))
    with (
        registry.running("orders"),
        pytest.raises(
            PipelineError, match=r"Pipeline orders is already running \(pid 4242\); run penstock pipeline stop orders"
        ),
        registry.running("orders"),
    ):
        pass
    with registry.running("orders"):
        pass


def test_the_hold_of_a_killed_process_is_let_go(registry, start) -> None:
    program = (
        "import sys, pathlib\n"
        "from penstock.spark.pipelines.registry import Registry\n"
        "with Registry(pathlib.Path(sys.argv[1])).running('orders'):\n"
        "    print('held', flush=True); input()\n"
    )
    child = start(program, str(registry.folder))
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(PipelineError), registry.running("orders"):
        pass
    child.kill()
    child.wait()
    with registry.running("orders"):
        pass


def test_a_damaged_file_is_reported(registry) -> None:
    registry.folder.mkdir()
    (registry.folder / "bad.json").write_text("{")
    with pytest.raises(PipelineError, match=r"bad\.json is damaged"):
        registry.load("bad")
    registry.save(a_run())
    assert [(run.name, run.state) for run in registry.all()] == [
        ("bad", PipelineState.FAILED),
        ("orders", PipelineState.RUNNING),
    ]


def test_one_that_is_about_to_start_is_not_forgotten(registry) -> None:
    registry.save(a_run(state=PipelineState.STOPPED))
    with registry.running("orders"), pytest.raises(PipelineError, match="is already running"):
        registry.forget("orders")
    assert registry.load("orders").state is PipelineState.STOPPED


def test_a_hold_on_what_was_forgotten_meanwhile_is_none(registry, monkeypatch) -> None:
    flock = fcntl.flock

    def forgotten_before(file, operation) -> None:
        (registry.folder / "orders.lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", forgotten_before)
    with pytest.raises(PipelineError, match="was removed just now"), registry.running("orders"):
        pass


def test_a_file_is_for_people_and_programs_too(registry) -> None:
    registry.save(a_run())
    assert json.loads((registry.folder / "orders.json").read_text())["state"] == "running"


def test_forgetting_leaves_the_checkpoint_and_what_runs(registry) -> None:
    registry.save(a_run())
    with pytest.raises(PipelineError, match="is running"):
        registry.forget("orders")
    registry.save(a_run(state=PipelineState.STOPPED))
    registry.checkpoint("orders").mkdir(parents=True)
    registry.forget("orders")
    assert registry.all() == []
    assert registry.checkpoint("orders").exists()


def test_the_numbers_of_several_queries() -> None:
    one = QueryStatus(name="a", query_id="1", batch_id=3, rows=10, rows_per_second=5.0, lag=0)
    two = QueryStatus(name="b", query_id="2", batch_id=2, rows=7, rows_per_second=9.0, lag=3)
    run = a_run(queries=[one, two])
    assert (run.rows, run.rows_per_second, run.lag, run.last_batch) == (10, 9.0, 3, 2)
    assert msgspec.structs.replace(run, queries=[one, QueryStatus(name="c", query_id="3")]).last_batch is None
    assert a_run(done=5).rows == 5


@pytest.mark.parametrize(
    ("given", "environment", "folder"),
    [
        ("/a", {"PENSTOCK_STATE_DIR": "/b"}, "/a"),
        (None, {"PENSTOCK_STATE_DIR": "/b", "XDG_DATA_HOME": "/c"}, "/b"),
        (None, {"XDG_DATA_HOME": "/c"}, "/c/penstock/pipelines"),
        (None, {}, os.path.expanduser("~/.local/share/penstock/pipelines")),
    ],
)
def test_where_runs_are_remembered(given, environment, folder) -> None:
    assert str(state_folder(given, environment)) == folder
