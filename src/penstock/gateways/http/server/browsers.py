"""Refuses what a browser sends because a web page told it to, and not its user.

Any page on the web can make the browser of someone who runs a broker send requests to it: by a fetch, a form, an image, a stream of
events. The page cannot read the responses, but the requests would be carried out. And a page can read them too if its name is
changed to the address of the broker after it was loaded (DNS rebinding). Three headers show it, none of which a page can set:

- ``Sec-Fetch-Site`` must be ``same-origin`` or ``none`` (the user typed the address). Another site may only link to the page of the API.
- ``Origin`` must be the host to which the request was sent.
- ``Host`` must be a name of this broker. A page that came from elsewhere has another name, whatever address it has by now.

Programs send neither of the first two, and connect to the broker by one of its names. A header that appears more than once is
checked each time. There are no CORS headers: no page of another origin may read anything.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import RawHeaders
from penstock.gateways.http.server.documentation import PAGE
from penstock.gateways.http.server.errors import Refusal
from penstock.settings import Settings

_LOOPBACK: Final = "localhost"
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{0,5})?")
_SCHEMES: Final = ("http://", "https://")
_NAME: Final = re.compile(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The names and addresses by which clients reach this broker, besides those of loopback."""

    names: frozenset[str] = frozenset()
    domains: tuple[str, ...] = ()
    """Ends of names, each with its dot."""
    any_address: bool = False
    """Whether the listener is bound to all addresses. An address is safe to accept: only a name can be rebound."""

    @classmethod
    def of(cls, settings: Settings, bound: str) -> Self:
        """Those of a listener that is bound to this address. INVALID_CONFIG if ``http.allowed_hosts`` cannot be read."""
        listeners = settings.listeners
        own = [bound, listeners.http.host if listeners.http else "", settings.cluster.advertise]
        if listeners.advertised_kafka is not None:
            own.append(listeners.advertised_kafka.host)
        allowed = [_allowed(entry) for text in settings.http.allowed_hosts.split(",") if (entry := text.strip())]
        names = {_canonical(host) for host in (*own, *allowed) if host}
        return cls(
            frozenset(name for name in names if not name.startswith(".") and not _is_unspecified(name)),
            tuple(sorted(name for name in names if name.startswith("."))),
            any_address=any(map(_is_unspecified, names)),
        )

    def __contains__(self, authority: str) -> bool:
        """Whether ``HOST`` or ``HOST:PORT``, in lower case, names this broker. Ports may differ, since they can be forwarded."""
        found = _AUTHORITY.fullmatch(authority)
        if found is None:
            return False
        host = _canonical(found[1])
        if host in self.names or host == _LOOPBACK or host.endswith(self.domains):
            return True
        address = _address(host)
        # No client needs the unspecified address, by which some systems reach loopback.
        return address is not None and (address.is_loopback or (self.any_address and not address.is_unspecified))


class BrowserGuard:
    """Decides by the head of a request alone."""

    __slots__ = ("_hosts",)

    def __init__(self, hosts: KnownHosts) -> None:
        self._hosts = hosts

    def refusal(self, method: str, path: str, headers: RawHeaders) -> Refusal | None:
        """Why the request is not served; None if it is."""
        hosts: list[str] = []
        origins: list[str] = []
        fetch: dict[bytes, list[str]] = {}
        for name, value in headers:
            if name == b"host":
                hosts.append(_text(value))
            elif name == b"origin":
                origins.append(_text(value))
            elif name.startswith(b"sec-fetch-"):
                fetch.setdefault(name, []).append(_text(value))
        for host in hosts:
            if host not in self._hosts:
                return _unknown_host(host)
        for origin in origins:
            if not any(origin == scheme + host for scheme in _SCHEMES for host in hosts):
                return _from_elsewhere()
        sites = fetch.get(b"sec-fetch-site", ())
        if any(site not in ("same-origin", "none") for site in sites) and not _is_link(method, path, fetch):
            return _from_elsewhere()
        return None


def authority_of(target: bytes) -> bytes | None:
    """The host in the target of a request, if it has one: it replaces the header (RFC 9112, 3.2.2)."""
    _, separator, rest = target.partition(b"://")
    return re.split(rb"[/?#]", rest, maxsplit=1)[0] if separator and not target.startswith(b"/") else None


def _is_link(method: str, path: str, fetch: dict[bytes, list[str]]) -> bool:
    """Whether the user follows a link of another site to the page."""
    opens = fetch.get(b"sec-fetch-mode") == ["navigate"] and fetch.get(b"sec-fetch-dest") == ["document"]
    return opens and path == PAGE and method in ("GET", "HEAD")


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _unknown_host(host: str) -> Refusal:
    shown = ascii(host if len(host) <= _SHOWN_CHARS_MAX else f"{host[: _SHOWN_CHARS_MAX - 3]}...")
    return Refusal(
        421,
        f"The host {shown} is not known as a name of this broker; use the address of the listener, or add the name to http.allowed_hosts",
    )


def _from_elsewhere() -> Refusal:
    return Refusal(
        403,
        "A web page of another origin sent this request, which is not allowed; send it from a program, or from a page of this broker",
    )


def _allowed(entry: str) -> str:
    host = entry.lower()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if _NAME.fullmatch(host) is None and _address(bare) is None:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"http.allowed_hosts: {entry!r} is not a host; give names and addresses without ports, such as broker.example.com,.example.org",
        )
    return host


def _canonical(host: str) -> str:
    """One form of each host: without brackets and the dot of the root, and addresses as ``ipaddress`` writes them."""
    bare = host.lower().removeprefix("[").removesuffix("]")
    address = _address(bare)
    return bare.removesuffix(".") if address is None else str(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_unspecified(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_unspecified
