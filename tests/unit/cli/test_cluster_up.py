"""A local cluster's processes: what is wished for while one of them is dying."""

import os
import signal
import sys
from time import monotonic

import pytest

from penstock.cli.cluster_folder import ClusterFolder, ClusterLayout, EtcdPorts, NodePorts
from penstock.cli.cluster_up import LocalCluster

SILENT_SECONDS_MAX = 10
PORTS = NodePorts(1, 2, 3, 4, 5)
CHILD = (
    "import signal, sys; print('all is well', file=sys.stderr); print('penstock ready x', flush=True); signal.pause()"
)


class Cluster(LocalCluster):
    """Its nodes say that they are ready, and do nothing. As soon as all are, the wish comes, and after it one of them dies."""

    def __init__(self, path, nodes, deaths) -> None:
        layout = ClusterLayout(EtcdPorts(1, 2), dict.fromkeys(range(1, nodes + 1), PORTS))
        super().__init__(ClusterFolder(path), layout, "etcd", is_kept=True)
        self.begun = []
        self._deaths_left = deaths
        self._is_dying = False

    def _start_etcd(self) -> None:
        self._start("etcd", [sys.executable, "-c", "import signal; signal.pause()"], dict(os.environ))

    def _start_node(self, node) -> None:
        self.begun.append(node)
        self._start(f"node-{node}", [sys.executable, "-c", CHILD], dict(os.environ))

    def _greet(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    def _is_ready(self, child, line) -> None:
        self._is_dying = False
        super()._is_ready(child, line)

    def _wait(self, seconds) -> None:
        began = monotonic()
        super()._wait(SILENT_SECONDS_MAX)
        if monotonic() - began >= SILENT_SECONDS_MAX:
            self._asked_to_stop = 1

    def _start_again(self) -> None:
        super()._start_again()
        if self._is_dying or self._asked_to_start or len(self._ready) < len(self._layout.nodes):
            return
        if self._deaths_left:
            self._deaths_left -= 1
            self._is_dying = True
            os.kill(self._children["node-1"].process.pid, signal.SIGKILL)
        else:
            self._asked_to_stop = 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_that_dies_just_after_the_wish_to_start_it_again_is_started(tmp_path, capfd, nodes) -> None:
    cluster = Cluster(tmp_path, nodes, deaths=1)
    cluster.run()
    assert cluster.begun == [*range(1, nodes + 1), 1]
    told = capfd.readouterr().err
    assert "Starting node-1 again" in told
    assert "kill -USR1" not in told
    assert "No node is left" not in told


def test_a_wish_starts_a_node_once(tmp_path, capfd) -> None:
    cluster = Cluster(tmp_path, 1, deaths=2)
    cluster.run()
    assert cluster.begun == [1, 1]
    assert "No node is left" in capfd.readouterr().err


def test_the_end_of_a_dead_node_s_log_is_of_its_last_start_and_not_shown_as_errors_of_the_command(
    tmp_path, capfd
) -> None:
    (tmp_path / "node-1.log").write_text("a line of an earlier start\n" * 20)
    Cluster(tmp_path, 2, deaths=1).run()
    told = capfd.readouterr().err.splitlines()
    (shown,) = [line for line in told if "all is well" in line]
    assert not shown.startswith("error:")
    assert any(line.startswith("error: node-1 was ended by SIGKILL") for line in told)
    assert not any("an earlier start" in line for line in told)
