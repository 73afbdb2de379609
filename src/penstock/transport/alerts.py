"""Sends the alert of a failed TLS handshake, which says to the client what is wrong: that its certificate has expired, for example.

The event loops close the connection without it. Both make the TLS object of a connection with ``wrap_bio`` of its context, in the task that
waits for the handshake; :class:`AlertingContext` makes one that sends what is left, to the socket that the task has named.
"""

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import cast

HANDSHAKING: ContextVar[socket.socket] = ContextVar("HANDSHAKING")
"""The socket of the handshake that the running task waits for."""


class _AlertingObject(ssl.SSLObject):
    """The TLS of one connection."""

    alerted: tuple[socket.socket, ssl.MemoryBIO] | None = None
    """Where alerts are sent, and where they come from."""

    def do_handshake(self) -> None:
        """As the base class does; if the handshake fails, the client gets the alert."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.alerted is not None:
                sock, outgoing = self.alerted
                # What the loop has written went out in an earlier turn: the alert answers what the client has sent since.
                with contextlib.suppress(OSError):
                    sock.send(outgoing.read())
            raise


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes send alerts."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Called by the event loop."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        sock = HANDSHAKING.get(None)
        if sock is not None:
            cast(_AlertingObject, made).alerted = (sock, outgoing)
        return made


AlertingContext.sslobject_class = _AlertingObject
