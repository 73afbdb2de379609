"""Real etcd for tests: one member or several, in a folder of their own, on ports that were free, with TLS if asked. Exactly what was
started is stopped.

``Relay`` stands between a client and a member, and can swallow answers or refuse connections: what a network does at the worst moment.
"""

import asyncio
import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from penstock.address import Address
from penstock.errors import PenstockError
from penstock.metadata.etcd.endpoints import EtcdEndpoints, StoreMember, Tls
from penstock.metadata.etcd.store import EtcdStore
from penstock.wire.etcd import etcd_generated as pb
from tests.support.waiting import eventually

HOST: Final = "127.0.0.1"
SECONDS_MAX: Final = 60.0
_STARTS_MAX: Final = 3
"""A port that was free a moment ago may be taken by the time etcd binds it."""


def needs_etcd() -> str:
    """The program; the test is skipped, and says so, where there is none."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not on PATH; tools/install_test_tools.sh installs it where it may")
    return program


def needs_openssl() -> str:
    """The same for what makes certificates."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not on PATH; tools/install_test_tools.sh installs it where it may")
    return program


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: an authority, and one certificate by it for servers and clients alike."""

    ca: Path
    certificate: Path
    key: Path

    def tls(self) -> Tls:
        """What a client is given."""
        return Tls(self.ca.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes())


_KEY_KIND: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_certificates(folder: Path) -> Certificates:
    """A new authority, and a certificate for this machine's loopback."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = ("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"), "-subj", "/CN=test authority")
    _run_openssl("req", "-x509", *_KEY_KIND, *authority, "-days", "2")
    return certificate_by(folder, "test node", "node")


def certificate_by(folder: Path, common_name: str, file: str) -> Certificates:
    """One more certificate by the authority in this folder. To etcd its common name is the name of a user."""
    made = Certificates(folder / "ca.pem", folder / f"{file}.pem", folder / f"{file}.key")
    request, extensions = str(folder / f"{file}.csr"), folder / "extensions"
    extensions.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    _run_openssl("req", *_KEY_KIND, "-keyout", str(made.key), "-out", request, "-subj", f"/CN={common_name}")
    authority = ("-CA", str(made.ca), "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-days", "2")
    signed = ("-extfile", str(extensions), "-out", str(made.certificate))
    _run_openssl("x509", "-req", "-in", request, *authority, *signed)
    return made


def _run_openssl(*words: str) -> None:
    subprocess.run((needs_openssl(), *words), check=True, capture_output=True, timeout=SECONDS_MAX)


@dataclass(slots=True)
class EtcdMember:
    """One process of etcd. It keeps its ports over a restart."""

    name: str
    folder: Path
    client: Address
    peer: Address
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, takes new ones, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class Etcd:
    """Some members that are one etcd. Use it as a context manager."""

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        certificates: Certificates | None = None,
        *,
        host: str = HOST,
        prefix: Sequence[str] = (),
    ) -> None:
        self._program = needs_etcd()
        self._host = host
        self._prefix = tuple(prefix)
        self._folder = folder
        self._count = members
        self.certificates: Final = certificates
        self.members: list[EtcdMember] = []

    def __enter__(self) -> "Etcd":
        for attempt in range(_STARTS_MAX):
            self.members = [self._member(attempt, number) for number in range(self._count)]
            for member in self.members:
                self.start(member)
            try:
                if self._prefix:
                    # gRPC's threads may have begun on another host than this thread's.
                    eventually(self._is_healthy, SECONDS_MAX, "etcd is healthy")
                else:
                    asyncio.run(self.ready())
            except AssertionError:
                self.close()
                if attempt == _STARTS_MAX - 1:
                    raise
                continue
            break
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what is running still."""
        for member in self.members:
            member.kill()

    @property
    def addresses(self) -> list[Address]:
        return [member.client for member in self.members]

    @property
    def urls(self) -> str:
        """As ``--etcd`` takes them."""
        return ",".join(f"{self._scheme}://{address}" for address in self.addresses)

    @property
    def tls(self) -> Tls | None:
        return None if self.certificates is None else self.certificates.tls()

    @property
    def _scheme(self) -> str:
        return "http" if self.certificates is None else "https"

    def _member(self, attempt: int, number: int) -> EtcdMember:
        client, peer = (Address(self._host, free_port()) for _ in range(2))
        return EtcdMember(f"m{number}", self._folder / f"etcd-{attempt}-{number}", client, peer)

    def start(self, member: EtcdMember) -> None:
        """Start it, for the first time or again with the data that it has."""
        client, peer = f"{self._scheme}://{member.client}", f"http://{member.peer}"
        options = {
            "name": member.name,
            "data-dir": str(member.folder),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"{each.name}=http://{each.peer}" for each in self.members),
            "logger": "zap",
        }
        if len(self.members) == 1:
            # It elects itself: a short wait for other candidates is as good as a long one.
            options |= {"heartbeat-interval": "20", "election-timeout": "200"}
        if self.certificates is not None:
            options["cert-file"] = str(self.certificates.certificate)
            options["key-file"] = str(self.certificates.key)
            options["trusted-ca-file"] = str(self.certificates.ca)
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        if self.certificates is not None:
            arguments.append("--client-cert-auth")
        with (self._folder / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen((*self._prefix, self._program, *arguments), stdout=log, stderr=log)

    async def ready(self) -> None:
        """Return once every member that runs answers, and knows a leader; AssertionError when one does not."""
        running = [member for member in self.members if member.process is not None]
        async with asyncio.timeout(SECONDS_MAX):
            for member in running:
                await self._is_ready(member)

    def _is_healthy(self) -> bool:
        for member in self.members:
            connection = http.client.HTTPConnection(member.client.host, member.client.port, timeout=2)
            try:
                connection.request("GET", "/health")
                if b"true" not in connection.getresponse().read():
                    return False
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()
        return True

    async def _is_ready(self, member: EtcdMember) -> None:
        endpoints = EtcdEndpoints([member.client], self.tls)
        try:
            while True:
                assert member.process is not None
                assert member.process.poll() is None, f"etcd {member.name} ended by itself; see its log"
                with contextlib.suppress(PenstockError):
                    await endpoints.ask(_read)
                    return
        finally:
            await endpoints.close()

    async def leader(self) -> EtcdMember:
        """The member that the others follow, once there is one."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                for member in self.members:
                    if await self._leads(member):
                        return member

    async def _leads(self, member: EtcdMember) -> bool:
        endpoints = EtcdEndpoints([member.client], self.tls)
        try:
            status = await endpoints.ask(_status)
        except PenstockError:
            return False
        finally:
            await endpoints.close()
        return bool(status.leader) and status.leader == status.header.member_id

    async def compact(self, revision: int) -> None:
        """Forget what was before ``revision``, on every member."""
        endpoints = EtcdEndpoints(self.addresses, self.tls)
        compact = endpoints.current.channel.unary_unary("/etcdserverpb.KV/Compact")
        try:
            # CompactionRequest: revision = 1, physical = 2.
            await compact(b"\x08" + _varint(revision) + b"\x10\x01", timeout=SECONDS_MAX)
        finally:
            await endpoints.close()

    async def open(self, cluster: str = "c", addresses: list[Address] | None = None) -> EtcdStore:
        """A store on it."""
        return await EtcdStore.open(cluster, addresses or self.addresses, self.tls)


async def _read(member: StoreMember) -> pb.RangeResponse:
    return await member.range(pb.RangeRequest(key=b"any"), timeout=2)  # type: ignore[no-any-return]


async def _status(member: StoreMember) -> pb.StatusResponse:
    return await member.status(pb.StatusRequest(), timeout=2)  # type: ignore[no-any-return]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Relay:
    """Carries bytes between clients and one member.

    While ``swallowing``, what the member answers is lost, and the client does not know. While ``refusing``, nobody gets through.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self.swallowing = False
        self.refusing = False
        self.swallowed = 0
        """Bytes that were lost."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = Address(HOST, 0)

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.address = Address(HOST, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.refusing:
                return
            with contextlib.suppress(OSError):
                there_reader, there_writer = await asyncio.open_connection(self._target.host, self._target.port)
                self._writers |= {writer, there_writer}
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._carry(reader, there_writer, is_answer=False))
                        group.create_task(self._carry(there_reader, writer, is_answer=True))
                finally:
                    self._writers -= {writer, there_writer}
                    there_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_answer and self.swallowing:
                    self.swallowed += len(data)
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.contextmanager
def running_etcd(
    folder: Path,
    members: int = 1,
    certificates: Certificates | None = None,
    *,
    host: str = HOST,
    prefix: Sequence[str] = (),
) -> Iterator[Etcd]:
    """Etcd for the length of a block; ``prefix`` is what its command begins with, when it is to run on a host of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with Etcd(folder, members, certificates, host=host, prefix=prefix) as etcd:
        yield etcd


@contextlib.asynccontextmanager
async def opened(etcd: Etcd, cluster: str = "c", addresses: list[Address] | None = None) -> AsyncIterator[EtcdStore]:
    """A store for the length of a block."""
    store = await etcd.open(cluster, addresses)
    try:
        yield store
    finally:
        await store.close()


__all__ = ["Certificates", "Etcd", "EtcdMember", "Relay", "eventually", "make_certificates", "opened", "running_etcd"]
