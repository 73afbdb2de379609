"""Sections with a subsection per listener: ``[listeners.outside]`` and ``[tls.outside]``.

Each name in ``listeners`` that is not one of the built-in listeners is one more listener for the Kafka protocol. A subsection of
``tls`` has what differs for one listener; it inherits the rest from ``[tls]``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from penstock.settings import (
    LISTENERS,
    NAMED_SECTIONS,
    ClientAuth,
    ListenerSettings,
    PeerTlsMode,
    Settings,
    TlsSettings,
)

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_NAME_WANTED: Final = "expected lowercase letters, digits, dashes and underscores, at most 31 of them, a letter first"
_RESERVED: Final = frozenset({*ListenerSettings.__struct_fields__, "tls", "insecure"})
"""Names with another meaning, in the configuration or in the ready line."""


class NamedPath(NamedTuple):
    """``listeners.outside.address``: the section, the name of the listener, and the key."""

    section: str
    name: str
    key: str


def named_path(path: str) -> NamedPath | None:
    """The parts of a path with a listener's name; None for any other path."""
    parts = path.split(".")
    return NamedPath(*parts) if len(parts) == 3 and parts[0] in NAMED_SECTIONS else None


def check_name(path: NamedPath) -> None:
    """ValueError unless the section can have a subsection of this name."""
    if path.section == "tls":
        # Whether there is such a listener is only known when all layers are read.
        return
    if path.name in LISTENERS:
        raise ValueError(f'Write the address as text: listeners.{path.name} = "HOST:PORT"')
    if path.name in _RESERVED or not _NAME.fullmatch(path.name):
        raise ValueError(f"{path.name!r} cannot be the name of a listener: {_NAME_WANTED}, and no word with a meaning")


def take_named(values: dict[str, object]) -> dict[str, dict[str, dict[str, object]]]:
    """Remove the values with a listener's name, and return them: section, name, key."""
    found: dict[str, dict[str, dict[str, object]]] = {section: {} for section in NAMED_SECTIONS}
    for path in list(values):
        if (named := named_path(path)) is not None:
            found[named.section].setdefault(named.name, {})[named.key] = values.pop(path)
    return found


def with_named(settings: Settings, found: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Settings:
    """The settings with their named subsections; each inherits what it does not set from the section of the same struct."""
    named = {}
    for section, (kind, field) in NAMED_SECTIONS.items():
        outer = getattr(settings, section)
        inherited = structs.asdict(outer) if isinstance(outer, kind) else {}
        named[field] = {name: kind(**{**inherited, **own}) for name, own in found[section].items()}
    return structs.replace(settings, **named)


def problems_of(settings: Settings) -> Iterator[str]:
    """What is wrong with the listeners and their TLS."""
    for name, listener in settings.kafka_listeners.items():
        if listener.address is None:
            yield f'listeners.{name}: it has no address; add address = "HOST:PORT" to [listeners.{name}], or remove it'
    yield from _problems_of_nodes(settings)
    names = (*LISTENERS, *settings.kafka_listeners)
    for name in settings.listener_tls:
        if name not in names:
            yield f"tls.{name}: there is no listener of this name; available: {', '.join(names)}"
    of_listeners = settings.listener_tls
    yield from _problems_of_tls("tls", settings.tls, is_default=any(each.is_on for each in of_listeners.values()))
    for name, own in of_listeners.items():
        yield from _problems_of_tls(f"tls.{name}", own, is_default=not own.enabled)


def _problems_of_tls(path: str, tls: TlsSettings, *, is_default: bool) -> Iterator[str]:
    """``is_default``: without a certificate, the section has no effect by itself; listeners with certificates inherit from it."""
    if bool(tls.cert_file) != bool(tls.key_file):
        has, lacks = ("cert_file", "key_file") if tls.cert_file else ("key_file", "cert_file")
        yield f"{path}: {has} is set without {lacks}; set both, or neither"
    if is_default and not tls.cert_file:
        return
    if tls.client_auth is not ClientAuth.NONE and not tls.ca_file:
        yield f"{path}: client_auth = {tls.client_auth.value!r} needs ca_file, the authorities that certify clients"
    if tls.ca_file and not tls.cert_file:
        yield f"{path}: ca_file is set, but without cert_file and key_file there is no TLS"


def _problems_of_nodes(settings: Settings) -> Iterator[str]:
    """A section that contradicts ``cluster.peer_tls``. Its author expects that connections between nodes are encrypted."""
    section, mode = settings.listener_tls.get("peer"), settings.cluster.peer_tls
    if not settings.cluster.name or section is None:
        return
    if section.is_on and mode is PeerTlsMode.OFF:
        yield "tls.peer: nodes do not use the certificate, because cluster.peer_tls is off; set cluster.peer_tls to accept or require"
    if not section.enabled and mode is not PeerTlsMode.OFF:
        yield f"tls.peer: enabled is false, but cluster.peer_tls is {mode.value}; remove one of them"
