"""Which quotas there are, what they can be set on, and how an entity is named in the store.

A quota of a user with a client id is more specific than one of the user, which is more specific than one of the client id. The part of a
key in the store is percent-encoded, so that no name can be taken for ``<default>`` or for two parts.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from penstock.errors import PenstockError, Reason
from penstock.limits import QUOTA_NAME_CHARS_MAX
from penstock.operations.quotas import EntityPart, Match, PartFilter, QuotaEntity

PREFIX: Final = "quotas/"
DEFAULT: Final = "<default>"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_FOLDERS: Final[Mapping[str, str]] = {USER: "users", CLIENT_ID: "clients", IP: "ips"}
_KINDS: Final[Mapping[str, str]] = {folder: kind for kind, folder in _FOLDERS.items()}
_WHOLE_MAX: Final = 2.0**53
"""Above it a float is not exact."""


class QuotaKey(Enum):
    """What is limited; the values are Kafka's names."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATIONS = "controller_mutation_rate"
    CONNECTIONS = "connection_creation_rate"


_WHOLE: Final = frozenset({QuotaKey.PRODUCE, QuotaKey.CONSUME, QuotaKey.CONNECTIONS})


class Place(NamedTuple):
    """An entity as a key: the name of each part, :data:`DEFAULT`, or None for a part that it does not have. Names are encoded."""

    user: str | None = None
    client: str | None = None
    ip: str | None = None


def encoded(name: str) -> str:
    """A name in which no character has a meaning."""
    return quote(name, safe="", errors="surrogatepass")


def place_of(entity: QuotaEntity) -> Place:
    """The entity as a key. INVALID_REQUEST, with what to change, if there can be no such entity."""
    names: dict[str, str] = {}
    for part in entity:
        if part.kind not in _FOLDERS:
            raise _invalid(f"There is no quota for {part.kind[:64]!a}. Use user, client-id or ip.")
        if part.kind in names:
            raise _invalid(f"The entity has {part.kind} twice. Name each part once.")
        names[part.kind] = DEFAULT if part.name is None else _checked_name(part.kind, part.name)
    if not names:
        raise _invalid("The entity is empty. Name a user, a client-id or an ip.")
    if IP in names and len(names) > 1:
        raise _invalid("A quota for an ip cannot be combined with a user or a client-id. Set them separately.")
    return Place(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _checked_name(kind: str, name: str) -> str:
    if not name:
        raise _invalid(f"The name of the {kind} is empty. Leave it out for the default, or name one.")
    if kind == IP:
        try:
            return encoded(str(ip_address(name)))
        except ValueError:
            raise _invalid(f"{name[:64]!a} is not an IP address. Use one like 192.0.2.7 or 2001:db8::7.") from None
    found = encoded(name)
    if len(found) > QUOTA_NAME_CHARS_MAX:
        raise _invalid(
            f"The name of the {kind} is longer than {QUOTA_NAME_CHARS_MAX} characters when encoded. Shorten it."
        )
    return found


def entity_of(place: Place) -> QuotaEntity:
    """The same as parts."""
    parts = ((USER, place.user), (CLIENT_ID, place.client), (IP, place.ip))
    return tuple(
        EntityPart(kind, None if name == DEFAULT else unquote(name, errors="surrogatepass"))
        for kind, name in parts
        if name is not None
    )


def store_key(place: Place) -> str:
    """For example ``quotas/users/anna/clients/<default>``."""
    parts = ((USER, place.user), (CLIENT_ID, place.client), (IP, place.ip))
    return PREFIX + "/".join(f"{_FOLDERS[kind]}/{name}" for kind, name in parts if name is not None)


def place_at(key: str) -> Place:
    """The entity of a key in the store."""
    parts = key.removeprefix(PREFIX).split("/")
    names = {_KINDS[folder]: name for folder, name in zip(parts[::2], parts[1::2], strict=True)}
    return Place(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def check_changes(place: Place, changes: Mapping[str, float | None]) -> None:
    """INVALID_REQUEST unless these quotas can be set on the entity."""
    for name, value in changes.items():
        try:
            key = QuotaKey(name)
        except ValueError:
            known = ", ".join(key.value for key in QuotaKey)
            raise _invalid(f"There is no quota {name[:64]!a}. Use one of {known}.") from None
        if (key is QuotaKey.CONNECTIONS) is not (place.ip is not None):
            wanted = "an ip" if key is QuotaKey.CONNECTIONS else "a user or a client-id"
            raise _invalid(f"{name} can only be set on {wanted}")
        if value is None:
            continue
        if not 0 < value < _WHOLE_MAX:
            raise _invalid(f"{name} must be greater than 0. Remove the quota to lift it.")
        if key in _WHOLE and value != int(value):
            raise _invalid(f"{name} must be a whole number, not {value}")


class PlaceFilter:
    """A filter over entities. INVALID_REQUEST if it makes no sense, UNSUPPORTED_VERSION for a part that does not exist."""

    def __init__(self, parts: Sequence[PartFilter], *, strict: bool) -> None:
        self._strict = strict
        self._wanted: dict[str, str | None] = {}
        """By kind: the encoded name, or None for any."""
        for part in parts:
            if not part.kind:
                raise _invalid("A part of the filter has no type. Use user, client-id or ip.")
            if part.kind not in _FOLDERS:
                raise PenstockError(
                    Reason.UNSUPPORTED_VERSION,
                    f"There is no quota for {part.kind[:64]!a}. Use user, client-id or ip.",
                )
            if part.kind in self._wanted:
                raise _invalid(f"The filter has {part.kind} twice. Name each part once.")
            if (part.match is Match.EXACT) is not (part.name is not None):
                raise _invalid("A part of the filter needs a name for an exact match, and only then")
            self._wanted[part.kind] = _wanted_name(part)
        if IP in self._wanted and len(self._wanted) > 1:
            raise _invalid("A filter for an ip cannot be combined with a user or a client-id. Ask separately.")

    def matches(self, place: Place) -> bool:
        """Whether the entity has every part, and if strict no other."""
        names = {USER: place.user, CLIENT_ID: place.client, IP: place.ip}
        if self._strict and sum(name is not None for name in names.values()) != len(self._wanted):
            return False
        return all(
            names[kind] is not None and (wanted is None or names[kind] == wanted)
            for kind, wanted in self._wanted.items()
        )


def _wanted_name(part: PartFilter) -> str | None:
    if part.match is Match.ANY:
        return None
    if part.name is None:
        return DEFAULT
    if part.kind == IP:
        try:
            return encoded(str(ip_address(part.name)))
        except ValueError:
            pass
    return encoded(part.name)


def _invalid(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_REQUEST, text)
