"""Listeners for tests that start a gateway by itself."""

import socket

from penstock.address import Address
from penstock.settings import LimitSettings
from penstock.transport.acceptor import Reception
from penstock.transport.listener import Arrival, Listener
from penstock.transport.listening import address_of, bind
from penstock.transport.peer_tls import PeerTls
from penstock.transport.tls import ServerTls

LOOPBACK = Address("127.0.0.1", 0)


def plain(name: str, sock: socket.socket | None = None, *, advertised: Address | None = None) -> Listener:
    """A listener without TLS, on this socket or a free port of loopback."""
    sock = sock or bind(LOOPBACK)
    return Listener(name, address_of(sock), Reception(LimitSettings()).accept, sock, advertised)


def encrypted(name: str, tls: ServerTls, limits: LimitSettings | None = None) -> Listener:
    """A listener with TLS, on a free port of loopback."""
    sock = bind(LOOPBACK)
    return Listener(name, address_of(sock), Reception(limits or LimitSettings()).accept, sock, tls=tls)


def unbound(name: str) -> Listener:
    """A listener that nobody can connect to, for connections that a test makes itself."""
    return Listener(name, Address("127.0.0.1", 9092))


def arrival(name: str) -> Arrival:
    """A connection at such a listener."""
    return Arrival(unbound(name), "127.0.0.1")


def of_nodes(tls: PeerTls) -> Listener:
    """The listener for other nodes, on a free port of loopback, as a server makes it."""
    sock = bind(LOOPBACK)
    accept = Reception(LimitSettings()).accept
    return Listener("peer", address_of(sock), accept, sock, tls=tls.certificate, allows_plain=not tls.is_required)
