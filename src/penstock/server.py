"""The composition root: starts a broker from its settings, and stops it cleanly. Only this module connects all parts."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock import __version__
from penstock.address import Address
from penstock.core.audit.audit import is_wanted
from penstock.core.audit.outputs import FileOutput, TopicOutput
from penstock.core.audit.writer import Output
from penstock.core.broker import Broker
from penstock.core.security.first_admin import ADMIN, make_first_admin, require_a_way_in
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.gateways.tcp.gateway import TcpGateway
from penstock.listeners import PEER, Listeners
from penstock.log.manager import LogManager
from penstock.metadata.sqlite import SqliteStore
from penstock.observe import logs as log_lines
from penstock.runtime.clock import SystemClock, SystemEntropy, pause_ms, within_ms
from penstock.runtime.data_dir import DataDir, DataDirError, NodeFile, NotThisNodesError
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.jwks import key_source
from penstock.runtime.loop import new_event_loop
from penstock.runtime.memory import keep_freed_memory
from penstock.secret_files import read_secret_text
from penstock.settings import Authentication, LogFormat, Settings
from penstock.transport.acceptor import Reception
from penstock.transport.listener import Listener

if TYPE_CHECKING:
    from penstock.cluster.node import NodeRunner
    from penstock.cluster.opening import OpenedNode
    from penstock.metadata.port import MetadataStore
    from penstock.ports import Disk, Keys
    from penstock.runtime.reloading import Reloading

logger = logging.getLogger("penstock.server")

ENCRYPTION_KEY: Final = "PENSTOCK_ENCRYPTION_KEY"
KEYRING: Final = "encryption.json"
STOP_GRACE_SECONDS: Final = 5.0
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class StartError(Exception):
    """The broker cannot start; the text says what to do. ``is_usage``: the settings are wrong."""

    def __init__(self, text: str, *, is_usage: bool = False) -> None:
        super().__init__(text)
        self.is_usage: Final = is_usage


class Server:
    """One node. ``start`` returns once it accepts connections; ``addresses`` has the real ports."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.listeners: Final = Listeners(settings)
        self._ready = False
        self._problem: Callable[[], str | None] = lambda: None
        """Returns why the metadata store cannot be reached, or None."""
        self.on_failed: Callable[[str], None] = lambda _why: None
        """Called with the reason when a node of a cluster should stop and let others take over. Set it before ``start``."""
        self._reloading: Reloading | None = None
        self._background: set[asyncio.Task[object]] = set()
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Lock the data directory, recover, and listen. If a step fails, the earlier ones are undone."""
        try:
            await self._start()
        except (DataDirError, PenstockError, OSError) as error:
            await self._stack.aclose()
            raise StartError(str(error), is_usage=_is_usage(error)) from error
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        settings, stack = self.settings, self._stack
        loop = asyncio.get_running_loop()
        clock, entropy, disk = SystemClock(), SystemEntropy(), RealDisk()
        if not self._is_alone and settings.listeners.peer is None:
            raise StartError(
                "A node of a cluster needs a peer listener: specify --peer HOST:PORT instead of off", is_usage=True
            )
        # First, because without its ports a broker must not change the data directory.
        reception = self._open_listeners()
        advertised = {} if self._is_alone else self._advertised()
        data_dir = DataDir(settings.server.data_dir)
        data_dir.own()
        stack.callback(data_dir.release)
        node = data_dir.identify(disk, entropy, settings.server.node_id, cluster=settings.cluster.name)
        keys = self._keys()
        node, log_disk = self._log_disk(disk, data_dir, node, keys)
        opened: OpenedNode | None = None
        if self._is_alone:
            data_dir.stay_alone(node)
            store: MetadataStore = await SqliteStore.open(f"{data_dir.path}/metadata.sqlite")
        else:
            from penstock.cluster.opening import open_cluster

            opened = await open_cluster(settings.cluster, data_dir, node, disk, clock, entropy)
            store, node = opened.store, opened.node
        stack.push_async_callback(store.close)
        store = await self._sealed(store, keys)
        commit = GroupCommit(loop, settings.log.flush, settings.log.sync_threads)
        stack.callback(commit.close)
        manager = LogManager(log_disk, data_dir.path, clock, _report)
        broker = Broker(
            settings,
            cluster_id=node.cluster_id,
            clock=clock,
            entropy=entropy,
            store=store,
            logs=manager,
            flusher=commit,
            report=_report,
        )
        self._connect(broker, commit, reception)
        await asyncio.to_thread(manager.open_all)
        stack.callback(manager.close)
        await broker.start()
        await self._secure(broker)
        stack.push_async_callback(commit.drain)
        stack.callback(broker.close)
        await self._start_audit(broker)
        housekeeping = Housekeeping(broker, commit)
        housekeeping.start()
        stack.push_async_callback(housekeeping.stop)
        cluster_node: NodeRunner | None = None
        if opened is not None:
            cluster_node = self._cluster_node(broker, commit, opened, advertised)
            broker.cluster.replicas.on_failed.append(self.on_failed)
            registration = cluster_node.registration
            self._problem = lambda: registration.problem
            stack.push_async_callback(cluster_node.stop)
            await cluster_node.start(self.listeners.open[PEER])
        await self._listen(broker, commit)
        if (grpc := self.listeners.grpc) is not None:
            await grpc.start(broker)
            stack.push_async_callback(grpc.stop, STOP_GRACE_SECONDS)
        if cluster_node is not None:
            # Called first at the stop, while everything is still served.
            stack.push_async_callback(cluster_node.hand_over)
        self._follow_certificates()
        for warning in self._warnings(data_dir):
            logger.warning("%s", warning)
        self._ready = True

    def _connect(self, broker: Broker, commit: GroupCommit, reception: Reception) -> None:
        """Give the broker what it needs of the outside world."""
        http = self.listeners.open.get("http")
        broker.background = self._start_task
        broker.off_loop = _off_loop
        broker.within = within_ms
        broker.http = self.addresses["http"]
        broker.authenticator.attempts.pause = pause_ms
        broker.authenticator.tokens.fetch = key_source(self.settings.oauth)
        broker.is_http_tls = http is not None and http.tls is not None
        broker.meters.connections_failed = reception.failures
        reception.admit = partial(_admit, broker)
        broker.meters.is_insecure = self.listeners.exposure.is_insecure
        commit.on_synced = broker.meters.synced

    async def _secure(self, broker: Broker) -> None:
        """With authentication, there must be a way in before anything listens."""
        authenticator, security = broker.authenticator, self.settings.security
        if authenticator.is_required and security.admin_password_file and not len(authenticator.users):
            password = read_secret_text(security.admin_password_file)
            if await make_first_admin(authenticator, password, broker.clock.now_ms()):
                logger.info("created the user %s with the password in %s", ADMIN, security.admin_password_file)
        require_a_way_in(authenticator, self.settings)

    def _open_listeners(self) -> Reception:
        settings = self.settings
        is_required = settings.security.authentication is Authentication.REQUIRED
        reception = Reception(settings.limits, until_authenticated=is_required)
        self.listeners.bind(reception, self._stack, STOP_GRACE_SECONDS)
        return reception

    async def _start_audit(self, broker: Broker) -> None:
        """The outputs of the audit log. A file that cannot be written stops the start."""
        settings = self.settings.audit
        if not is_wanted(self.settings):
            return
        outputs: list[Output] = []
        if settings.file:
            from penstock.runtime.audit_file import open_audit_file

            try:
                file = await asyncio.to_thread(
                    open_audit_file, settings.file, settings.file_bytes_max, settings.files_max
                )
            except OSError as error:
                raise StartError(
                    f"Cannot write the audit log to {settings.file}: {error.strerror or error}; set audit.file to another file"
                ) from error
            outputs.append(FileOutput(broker, file))
        if settings.topic:
            outputs.append(TopicOutput(broker, settings.retention_days))
        broker.audit.start(outputs)
        self._stack.push_async_callback(broker.audit.stop)

    def _warnings(self, data_dir: DataDir) -> Iterator[str]:
        """What allows the start, but is probably not wanted."""
        yield from self.listeners.exposure.warnings
        if self.settings.security.authentication is Authentication.REQUIRED and (exposed := data_dir.exposed):
            yield exposed

    def _follow_certificates(self) -> None:
        if not self.listeners.tls:
            return
        from penstock.runtime.reloading import Reloading

        self._reloading = Reloading(self.listeners.tls)
        self._reloading.start()
        self._stack.push_async_callback(self._reloading.stop)

    @property
    def _is_alone(self) -> bool:
        return not self.settings.cluster.name

    @property
    def addresses(self) -> dict[str, Address | None]:
        """The real address of each listener by its name; None if it is off."""
        return self.listeners.addresses

    def _keys(self) -> "Keys | None":
        """The master keys, if data is to be encrypted."""
        key_file = self.settings.encryption.key_file
        if not key_file and not os.environ.get(ENCRYPTION_KEY):
            return None
        from penstock.encryption.keys import load_keys

        return load_keys(key_file, os.environ)

    def _log_disk(
        self, disk: RealDisk, data_dir: DataDir, node: NodeFile, keys: "Keys | None"
    ) -> "tuple[NodeFile, Disk]":
        """The disk of the logs. INVALID_CONFIG if it is encrypted, and the key is missing or wrong."""
        if keys is None and not node.encrypted and not disk.exists(f"{data_dir.path}/{KEYRING}"):
            return node, disk
        from penstock.encryption.directory import prepare

        encrypted = prepare(disk, data_dir.path, keys, _report, was_encrypted=node.encrypted)
        return (node, disk) if encrypted is None else (data_dir.note_encrypted(disk, node), encrypted)

    async def _sealed(self, store: "MetadataStore", keys: "Keys | None") -> "MetadataStore":
        """The store with its secrets sealed, if there is a key."""
        from penstock.encryption.store import SealedStore

        return await SealedStore.open(store, keys, _report)

    def _advertised(self) -> dict[str, Address]:
        from penstock.cluster.opening import advertised

        return advertised(self.addresses, self.settings.cluster.advertise, self.listeners.chosen)

    def _cluster_node(
        self, broker: Broker, commit: GroupCommit, opened: "OpenedNode", listeners: Mapping[str, Address]
    ) -> "NodeRunner":
        from penstock.cluster.node import NodeRunner

        return NodeRunner(
            broker,
            opened.store,
            commit.turn,
            directory=UUID(hex=opened.node.directory),
            listeners=listeners,
            tls=self.listeners.peer_tls,
        )

    def _start_task(self, coroutine: Coroutine[object, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        # The loop itself holds tasks only weakly.
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _listen(self, broker: Broker, commit: GroupCommit) -> None:
        if kafka_listeners := list(self.listeners.kafka):
            kafka = KafkaGateway(broker, commit.turn, self.settings.limits)
            for listener in kafka_listeners:
                await kafka.start(listener)
            self._stack.push_async_callback(kafka.stop, STOP_GRACE_SECONDS)
        if (http_listener := self.listeners.open.get("http")) is not None:
            from penstock.gateways.http.server.gateway import HttpGateway

            http = HttpGateway(broker, commit.turn, self.settings.http, lambda: self._ready, self._problem)
            await http.start(http_listener)
            self._stack.push_async_callback(http.stop)
        if (tcp_listener := self.listeners.open.get("tcp")) is not None:
            tcp = TcpGateway(broker, commit.turn, self.settings.tcp, self.settings.limits)
            await tcp.start(tcp_listener)
            self._stack.push_async_callback(tcp.stop, STOP_GRACE_SECONDS)

    def reload(self) -> None:
        """Read the files of TLS again, soon."""
        if self._reloading is not None:
            self._reloading.now()

    async def stop(self) -> None:
        """Answer requests that are under way, sync, mark the stop as clean, and unlock the data directory."""
        self._ready = False
        await self._stack.aclose()

    def ready_line(self) -> str:
        """The line that ``penstock serve`` prints once it accepts connections."""
        return " ".join(("penstock ready", *self.listeners.ready_words()))


def _admit(broker: Broker, listener: Listener, address: str) -> tuple[float, str]:
    """How the limits on new connections apply to one. Other nodes have none."""
    if listener.name == PEER:
        return 0.0, ""
    found = broker.quotas.connections.admit(address, broker.clock.monotonic_ms())
    return found.delay_ms / 1000, found.refusal


def _is_usage(error: Exception) -> bool:
    """Whether the settings are wrong, not the environment."""
    return isinstance(error, NotThisNodesError) or getattr(error, "reason", None) is Reason.INVALID_CONFIG


def _off_loop(work: Callable[[], None], done: Callable[[], None]) -> None:
    asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(lambda _: done())


def _report(text: str) -> None:
    logger.warning("%s", text)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    log_lines.set_up(as_json=settings.server.log_format is LogFormat.JSON, level=settings.server.log_level.value)
    _raise_descriptor_limit()
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(settings))
    except StartError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USAGE if error.is_usage else EXIT_FAILED


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    failures: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(settings)

    def failed(why: str) -> None:
        if not failures:
            logger.error("%s; this node stops, and the others take over: repair its disk, then start it again", why)
        failures.append(why)
        stopping.set()

    server.on_failed = failed
    await server.start()
    if server.listeners.tls:
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    # The garbage collector need not examine what is loaded by now.
    gc.collect()
    gc.freeze()
    logger.info("penstock %s serves %s", __version__, settings.server.data_dir)
    sys.stdout.write(server.ready_line() + "\n")
    sys.stdout.flush()
    await stopping.wait()
    logger.info("stopping")
    await server.stop()
    logger.info("stopped")
    return EXIT_FAILED if failures else EXIT_OK


def _raise_descriptor_limit() -> None:
    """Raise the limit on file descriptors as far as allowed: every connection and open segment takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
