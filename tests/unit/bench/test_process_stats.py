import os
import socket
import subprocess
import sys

import pytest

from penstock.bench.process_stats import is_loopback, pid_listening_on, usage_of

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the system has no /proc")

# Spends CPU time in a child of its own, which stays alive, and says when it is done.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import time, sys
held = bytearray(64 << 20)
while time.process_time() < 0.35:
    pass
print("done", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("done", flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_a_childs_cpu_and_memory_count_for_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"done\n"
        usage = usage_of(process.pid)
        process.stdin.close()
    assert usage.cpu_s >= 0.3
    assert usage.rss_anon_bytes >= 64 << 20
    assert usage.rss_bytes >= usage.rss_anon_bytes


def test_a_process_that_is_gone_has_no_usage() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert usage_of(process.pid) is None


def test_the_listener_on_a_port_is_found() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        assert pid_listening_on(port) == os.getpid()
    assert pid_listening_on(port) is None


def test_loopback_is_known_by_name_and_by_number() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("192.0.2.1")
