"""Taking a port. It is done before anything else: a start that cannot have its ports leaves nothing behind."""

import asyncio
import socket

from penstock.address import Address


def bind(address: Address) -> socket.socket:
    """A socket that has the address and does not listen yet; port 0 picks a free one. OSError when it cannot be had.

    A name may stand for an IPv6 and an IPv4 address. One port needs one of them, and IPv4 is what every client can reach.
    """
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> Address:
    """Where it is bound."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def send_at_once(writer: asyncio.StreamWriter | asyncio.BaseTransport) -> None:
    """Small answers do not wait for the other side to acknowledge the last ones. asyncio does this only for sockets whose protocol it is told."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
