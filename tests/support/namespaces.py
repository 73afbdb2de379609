"""Hosts on one machine: network namespaces on a bridge that the test made, and can cut. They go with the test.

Everything hangs on a bridge in a namespace of its own; the machine's own network is not touched. Clients run in the bridge's namespace.
A cut drops packets without a word, as a broken switch does: nobody is told that a connection is gone.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

_CLONE_NEWNET: Final = 0x40000000
_HUB: Final = "hub"
_HUB_ADDRESS: Final = "10.77.0.254"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


class Hosts:
    """Named hosts with an address each; use it as a context manager. Skips the test, and says so, where the machine does not allow it."""

    def __init__(self, names: Sequence[str]) -> None:
        for program in ("ip", "bridge"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not on PATH; tools/install_test_tools.sh installs iproute2 where it may")
        self._prefix = f"penstock{os.getpid()}"
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._made: list[str] = []

    def __enter__(self) -> "Hosts":
        try:
            self._make(_HUB)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        try:
            hub = self._space(_HUB)
            _run("ip", "-n", hub, "link", "add", "bridge0", "type", "bridge")
            _run("ip", "-n", hub, "addr", "add", f"{_HUB_ADDRESS}/24", "dev", "bridge0")
            _run("ip", "-n", hub, "link", "set", "bridge0", "up")
            for name, address in self.addresses.items():
                self._make(name)
                space, port = self._space(name), self._port(name)
                _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
                _run("ip", "-n", hub, "link", "set", port, "master", "bridge0", "up")
                _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                _run("ip", "-n", space, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        for space in self._made:
            _run("ip", "netns", "del", space)
        self._made.clear()

    def prefix(self, name: str) -> list[str]:
        """What a command begins with that is to run on a host."""
        return ["ip", "netns", "exec", self._space(name)]

    @contextlib.contextmanager
    def on_the_hub(self) -> Iterator[None]:
        """This thread, and threads and processes begun by it, are where all hosts can be reached."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as home, Path(f"/run/netns/{self._space(_HUB)}").open() as hub:
            assert libc.setns(hub.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(home.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    def cut_off(self, name: str) -> None:
        """One host from everybody."""
        _run("ip", "-n", self._space(_HUB), "link", "set", self._port(name), "down")

    def cut_apart(self, *names: str) -> None:
        """Some hosts from each other; all others, and the clients, reach each of them."""
        for name in names:
            self._isolate(name, "on")

    def heal(self) -> None:
        """All reach all again."""
        for name in self.addresses:
            self._isolate(name, "off")
            _run("ip", "-n", self._space(_HUB), "link", "set", self._port(name), "up")

    def _isolate(self, name: str, state: str) -> None:
        _run("bridge", "-n", self._space(_HUB), "link", "set", "dev", self._port(name), "isolated", state)

    def _make(self, name: str) -> None:
        space = self._space(name)
        _run("ip", "netns", "add", space)
        self._made.append(space)
        _run("ip", "-n", space, "link", "set", "lo", "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _port(self, name: str) -> str:
        return f"to-{name}"
