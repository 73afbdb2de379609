"""Opening ports. A node does this before anything else, so that a start without its ports leaves nothing behind."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from penstock.address import Address

_MAPPED: Final = "::ffff:"


def bind(address: Address) -> socket.socket:
    """A socket that is bound to the address and does not listen yet; port 0 picks a free one. OSError if it is not available.

    If the host has both an IPv6 and an IPv4 address, IPv4 is used, which every client can reach.
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
    """The address to which a socket is bound."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def host_of(where: Sequence[object]) -> str:
    """The host of a socket's address, in the one form in which rules and limits know it.

    A listener on all addresses of IPv6 shows a client of IPv4 as ``::ffff:192.0.2.1``, and a link-local one with its interface.
    """
    host, _, _ = str(where[0]).partition("%")
    mapped = host.removeprefix(_MAPPED)
    return mapped if "." in mapped else host


def send_at_once(writer: asyncio.StreamWriter | asyncio.BaseTransport) -> None:
    """Set TCP_NODELAY, which asyncio does not set on sockets that are passed to it without their protocol."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
