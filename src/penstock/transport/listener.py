"""A listener: its name, the address that it has and the one that it advertises, and its TLS. ``server.py`` makes one for each gateway.

A gateway serves a listener with :meth:`Listener.serve`, and knows from the :class:`Arrival` of a connection where it came in.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from penstock.address import Address
from penstock.transport.handshakes import Failure

if TYPE_CHECKING:
    from penstock.transport.tls import ServerTls


class Arrival:
    """A connection that was accepted: on which listener, and from which host.

    Until :meth:`known` is called, it counts as a stranger. There are places for few strangers, and the oldest has to make room for the next:
    then ``on_crowded`` is called, which must disconnect.
    """

    __slots__ = ("_counted", "_desk", "host", "listener", "on_crowded")

    def __init__(
        self, listener: "Listener", host: str = "", desk: "Desk | None" = None, *, is_stranger: bool = False
    ) -> None:
        self.listener = listener
        self.host = host
        self.on_crowded: Callable[[], None] | None = None
        self._desk = desk
        self._counted = is_stranger

    def known(self) -> None:
        """The client has proved who it is, need not, or is gone. A second call does nothing."""
        if self._counted and self._desk is not None:
            self._counted = False
            self._desk.left(self)

    def failed(self, failure: Failure) -> None:
        """Count and log why the connection cannot be served."""
        if self._desk is not None:
            self._desk.failed(self, failure)


class Desk(Protocol):
    """Where arrivals are counted."""

    def left(self, arrival: Arrival) -> None:
        """It is no stranger any more."""
        ...

    def failed(self, arrival: Arrival, failure: Failure) -> None:
        """It cannot be served."""
        ...


Connect = Callable[[Arrival], asyncio.BaseProtocol]
"""Makes the protocol of a new connection. It is called before the TLS handshake; ``connection_made`` comes after it."""


class Accepting(Protocol):
    """A listener that is served. ``asyncio.Server`` is one, too."""

    def close(self) -> None:
        """Accept no more connections. Those that are open stay open."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """How a gateway answers those that speak the wrong protocol at its listener."""

    connect: Connect
    plain_answer: Callable[[bytes], bytes] = lambda _first: b""
    """What a client gets that sent these bytes without TLS to a listener that requires it; empty if its protocol cannot say it."""


Accept = Callable[["Listener", Door], Awaitable[Accepting]]


@dataclass(frozen=True, slots=True)
class Listener:
    """One address at which clients connect. The address is the bound one, with the real port."""

    name: str
    address: Address
    accept: Accept | None = None
    """Serves it; None for gRPC, whose library opens the port itself."""
    sock: socket.socket | None = None
    advertised: Address | None = None
    """The address that clients receive; None: the one that they connected to."""
    tls: "ServerTls | None" = None
    allows_plain: bool = False
    """Whether connections without TLS are let in all the same."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.address.host).is_loopback
        except ValueError:
            return False

    @property
    def is_private(self) -> bool:
        """Whether nobody can read the bytes on the way."""
        return (self.tls is not None and not self.allows_plain) or self.is_loopback

    async def serve(self, door: Door) -> Accepting:
        """Accept connections until the result is closed."""
        assert self.accept is not None, "gRPC accepts by itself"
        return await self.accept(self, door)
