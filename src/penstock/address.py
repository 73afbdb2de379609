"""``HOST:PORT``, ``[IPv6]:PORT`` or ``off``: the format of every listener and bootstrap server."""

from typing import NamedTuple

PORT_MAX = 65_535
OFF = "off"


class Address(NamedTuple):
    """A host and a port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Parse an address; ValueError says what is wrong with it."""
    host, port_text = _split(text.strip(), default_port)
    if not host:
        raise ValueError(f"{text!r} has no host; write HOST:PORT, for example 127.0.0.1:9092")
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > PORT_MAX:
        raise ValueError(f"{text!r} has no port from 0 to {PORT_MAX} after the last colon")
    return Address(host, int(port_text))


def _split(text: str, default_port: int | None) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write IPv6 as [::1]:9092")
        port = rest[1:]
    else:
        host, _, port = text.rpartition(":")
        if ":" in host:
            raise ValueError(f"{text!r} has more than one colon; write IPv6 in brackets, such as [::1]:9092")
        if not host and default_port is not None and ":" not in text:
            return text, str(default_port)
        if ":" not in text:
            raise ValueError(f"{text!r} has no port; write HOST:PORT, for example 127.0.0.1:9092")
        return host, port
    if not port and default_port is not None:
        port = str(default_port)
    return host, port
