"""Connects sockets, with TLS where it is used.

A password or token is not sent to another machine without TLS, unless the caller allowed it.
"""

import socket
import sys
from typing import Final

from penstock.address import Address
from penstock.client.errors import InvalidSecurity
from penstock.client.security import ClientSecurity
from penstock.types import Buffer

JOINED_BYTES_MAX: Final = 128 * 1024
"""Buffers are copied together up to this size, since each write makes at least one TLS record."""


def connect(address: Address, security: ClientSecurity, *, timeout_ms: float, tls: bool | None = None) -> socket.socket:
    """A connected socket, with TLS if the security says so, or ``tls`` does. OSError if there is no connection, :class:`TlsFailed` if it is not secure."""
    context = None
    if security.uses_tls if tls is None else tls:
        # Only here, since it takes longer to import than a plain connection to open.
        from penstock.client.tls import context_of

        context = context_of(security)
    connected = socket.create_connection(address, timeout=timeout_ms / 1000)
    try:
        if context is None:
            _check_may_send(address, connected, security)
        else:
            from penstock.client.tls import encrypted

            connected = encrypted(connected, context, address, security)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connected.close()
        raise
    return connected


def pieces(buffers: list[Buffer]) -> list[Buffer]:
    """Buffers to write one after the other: neighbours are joined while they are small, and large ones are not copied."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > JOINED_BYTES_MAX and small:
            joined.append(b"".join(small))
            small, size = [], 0
        if len(buffer) > JOINED_BYTES_MAX:
            joined.append(buffer)
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        joined.append(b"".join(small))
    return joined


def is_readable(connected: socket.socket) -> bool:
    """Whether there is data or the end of the stream. Not by ``select``, which does not support more than 1024 open files.

    From a TLS socket, data is lost by this: it is for connections on which none is due.
    """
    connected.setblocking(False)
    try:
        if is_tls(connected):
            # Only TLS itself knows whether what arrived is data: servers also send session tickets.
            connected.recv(1)
        else:
            connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError as error:
        return type(error).__name__ != "SSLWantReadError"
    return True


def is_tls(connected: socket.socket) -> bool:
    """Whether it is a TLS socket, without an import of ``ssl``."""
    return "ssl" in sys.modules and isinstance(connected, sys.modules["ssl"].SSLSocket)


def _check_may_send(address: Address, connected: socket.socket, security: ClientSecurity) -> None:
    if security.sasl_mechanism is None or security.may_send_unencrypted or _is_loopback(connected):
        return
    raise InvalidSecurity(
        f"The connection to {address} is not encrypted, so no password or token is sent: use TLS (--tls, or --tls-ca with the broker's CA)"
    )


def _is_loopback(connected: socket.socket) -> bool:
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    import ipaddress

    found = ipaddress.ip_address(str(connected.getpeername()[0]).partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
