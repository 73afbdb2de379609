"""The listeners of a node, opened from its settings before anything else: without its ports, a broker must not change the data directory."""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.address import Address
from penstock.core.security.exposure import Exposed, Exposure, check_exposure
from penstock.errors import PenstockError, Reason
from penstock.settings import LISTENERS, Authentication, Settings, TlsSettings
from penstock.transport.listener import Listener
from penstock.transport.listening import address_of, bind
from penstock.transport.peer_tls import PLAIN, PeerTls

if TYPE_CHECKING:
    from penstock.gateways.grpc.gateway import GrpcGateway
    from penstock.transport.acceptor import Reception
    from penstock.transport.peer_tls import NodeCertificate
    from penstock.transport.tls import ServerTls

PEER: Final = "peer"
"""The listener for other nodes of a cluster."""


class Listeners:
    """The open listeners by their names, in the order of the ready line."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.exposure = Exposure()
        self.open: Final[dict[str, Listener]] = {}
        self.grpc: GrpcGateway | None = None
        self.peer_tls: PeerTls = PLAIN
        self._tls: dict[TlsSettings, ServerTls] = {}

    @property
    def wanted(self) -> Mapping[str, Address | None]:
        """The address of each listener, as configured."""
        settings = self.settings
        own = {name: getattr(settings.listeners, name) for name in LISTENERS if name != PEER or settings.cluster.name}
        return {**own, **{name: listener.address for name, listener in settings.kafka_listeners.items()}}

    def bind(self, reception: "Reception", stack: contextlib.AsyncExitStack, grace_seconds: float) -> None:
        """Take all ports. PenstockError INVALID_CONFIG or OSError, with a sentence, if one is not available or must not be used like this."""
        for name, wanted in self.wanted.items():
            if wanted is None:
                continue
            tls = self._tls_of(name)
            try:
                if name == "grpc":
                    self.open[name] = self._bind_grpc(wanted, tls, stack, grace_seconds)
                else:
                    sock = bind(wanted)
                    stack.callback(sock.close)
                    self.open[name] = self._listener(name, sock, reception, tls)
            except ValueError as error:
                raise PenstockError(Reason.INVALID_CONFIG, f"TLS of the {name} listener: {error}") from None
            except OSError as error:
                raise OSError(self._cannot_listen(name, wanted, error)) from error
        self.exposure = check_exposure(
            [
                Exposed(each.name, each.address, each.is_loopback, each.is_private, of_nodes=each.name == PEER)
                for each in self.open.values()
            ],
            self.settings.security,
        )

    def _listener(self, name: str, sock: socket.socket, reception: "Reception", tls: "ServerTls | None") -> Listener:
        if name != PEER:
            return Listener(name, address_of(sock), reception.accept, sock, self._advertised(name), tls)
        # Clients must not take the places of nodes.
        accept = reception.another().accept
        allows_plain = not self.peer_tls.is_required
        return Listener(name, address_of(sock), accept, sock, tls=tls, allows_plain=allows_plain)

    def _bind_grpc(
        self, wanted: Address, tls: "ServerTls | None", stack: contextlib.AsyncExitStack, grace_seconds: float
    ) -> Listener:
        # Importing grpc takes a tenth of a second, so it is imported only if it is used.
        from penstock.gateways.grpc.gateway import GrpcGateway

        gateway = self.grpc = GrpcGateway(
            self.settings.grpc,
            self.settings.limits,
            asks_for_logins=self.settings.security.authentication is Authentication.REQUIRED,
        )
        # Releases the port if a later step fails; a second stop does nothing.
        stack.push_async_callback(gateway.stop, grace_seconds)
        gateway.bind(wanted, tls)
        assert gateway.listener is not None
        return gateway.listener

    def _tls_of(self, name: str) -> "ServerTls | None":
        wanted = self.settings.tls_of(name)
        if name == PEER:
            return self._node_certificate(wanted)
        if not wanted.is_on:
            return None
        found = self._tls.get(wanted)
        if found is None:
            from penstock.core.security.certificates import PrincipalRules
            from penstock.transport.tls import ServerTls

            try:
                rules = PrincipalRules(wanted.principal_rules)
                found = self._tls[wanted] = ServerTls(wanted, rules.name_of_certificate)
            except ValueError as error:
                raise PenstockError(Reason.INVALID_CONFIG, f"TLS of the {name} listener: {error}") from None
        return found

    def _node_certificate(self, wanted: TlsSettings) -> "NodeCertificate | None":
        settings = self.settings
        try:
            self.peer_tls = PeerTls(settings.cluster.peer_tls, settings.cluster.name, settings.server.node_id, wanted)
        except ValueError as error:
            raise PenstockError(Reason.INVALID_CONFIG, f"TLS of the peer listener: {error}") from None
        return self.peer_tls.certificate

    def _advertised(self, name: str) -> Address | None:
        if name == "kafka":
            return self.settings.listeners.advertised_kafka
        listener = self.settings.kafka_listeners.get(name)
        return None if listener is None else listener.advertised

    def _cannot_listen(self, name: str, wanted: Address, error: OSError) -> str:
        words = str(error) if error.errno is None else os.strerror(error.errno).lower()
        how = f"--{name} HOST:PORT" if name in LISTENERS else f"listeners.{name}.address"
        return f"cannot listen on {wanted} for {name}: {words}; specify another address with {how}"

    @property
    def addresses(self) -> dict[str, Address | None]:
        """The real address of each listener; None if it is off."""
        return {name: self.open[name].address if name in self.open else None for name in self.wanted}

    @property
    def chosen(self) -> dict[str, Address]:
        """The addresses that are advertised because the settings say so."""
        return {name: each.advertised for name, each in self.open.items() if each.advertised is not None}

    @property
    def kafka(self) -> Iterator[Listener]:
        """The listeners for the Kafka protocol."""
        return (each for name, each in self.open.items() if name == "kafka" or name in self.settings.kafka_listeners)

    @property
    def tls(self) -> list["ServerTls"]:
        """All TLS, to be read again when the files change."""
        of_nodes = [] if self.peer_tls.certificate is None else [self.peer_tls.certificate]
        return [*self._tls.values(), *of_nodes]

    def ready_words(self) -> Iterator[str]:
        """The words of the ready line."""
        yield from (f"{name}={address or 'off'}" for name, address in self.addresses.items())
        if encrypted := [name for name, each in self.open.items() if each.tls is not None]:
            yield f"tls={','.join(encrypted)}"
        if self.exposure.is_insecure:
            yield "insecure=yes"
