"""What was set on brokers and groups while the broker runs, as the metadata store last told it, and the way to change it.

In the store ``configs/brokers/<node>``, ``configs/brokers/default`` (all brokers) and ``configs/groups/<group>`` hold ``{"config": {...}}``, in plain form; a resource
without configs has no entry. Each change is one compare-and-set, and is in memory here when the call returns.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from penstock.core.broker_config import broker_config, broker_values, check_broker_configs, topic_values
from penstock.core.groups.configs import check_group_configs, check_group_name, group_config
from penstock.core.topics.config import ConfigChange, ConfigLayer, change_values
from penstock.core.topics.config_table import ConfigDefinition, ConfigSource
from penstock.core.topics.records import decode_entry
from penstock.errors import PenstockError, Reason
from penstock.limits import CONFIGURED_GROUPS_MAX
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Operation, Put
from penstock.types import NodeId

PREFIX: Final = "configs/"
_DEFAULT: Final = "default"
_ATTEMPTS_MAX: Final = 100
"""How often a change is tried again because another one was made in between."""


class ResourceKind(Enum):
    """What such configs belong to."""

    BROKER = "brokers"
    GROUP = "groups"


class Resource(NamedTuple):
    """One broker or group; a broker without a name is all brokers."""

    kind: ResourceKind
    name: str


ALL_BROKERS: Final = Resource(ResourceKind.BROKER, "")


class _ConfigRecord(msgspec.Struct, frozen=True):
    config: dict[str, str]


_decoder: Final = msgspec.json.Decoder(_ConfigRecord)


class DynamicConfigs:
    """The configs of all brokers and groups. Made empty; :meth:`load` fills it."""

    def __init__(self, store: MetadataStore, node_id: NodeId, topic_defaults: Mapping[str, str]) -> None:
        """``topic_defaults`` are the topic configs of the broker's configuration, by which values are checked."""
        self._store = store
        self._node: Final = Resource(ResourceKind.BROKER, str(node_id))
        self._topic_defaults = topic_defaults
        self._values: dict[Resource, Mapping[str, str]] = {}
        self._held_events: list[Event] | None = []
        self.on_changed: Final[list[Callable[[], None]]] = []
        """Told when something changed that this broker goes by."""

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        self._store.subscribe(PREFIX, self._take)
        found = await self._store.range(PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            self._values[_resource(entry.key)] = _decode(entry)
        self._take([event for event in held if event.revision > found.revision])

    # What holds.

    def values(self, resource: Resource) -> Mapping[str, str]:
        """What was set on this resource itself."""
        return self._values.get(resource, {})

    def layers(self) -> list[ConfigLayer]:
        """What was set for this broker, strongest first."""
        return [
            (ConfigSource.DYNAMIC_BROKER, self.values(self._node)),
            (ConfigSource.DYNAMIC_DEFAULT, self.values(ALL_BROKERS)),
        ]

    def topic_layers(self) -> list[ConfigLayer]:
        """The same for topics, by the names of topic configs, with the broker's configuration last."""
        dynamic = [(source, topic_values(values)) for source, values in self.layers()]
        return [*dynamic, (ConfigSource.STATIC_BROKER, self._topic_defaults)]

    def topic_defaults(self) -> dict[str, str]:
        """The topic configs of topics that do not say otherwise."""
        merged: dict[str, str] = {}
        for _, values in reversed(self.topic_layers()):
            merged.update(values)
        return merged

    def number(self, name: str) -> int | None:
        """What was set for this broker; None when nothing was."""
        text = next((values[name] for _, values in self.layers() if name in values), None)
        return None if text is None else int(text)

    def group_names(self) -> list[str]:
        """The groups that have configs."""
        return sorted(resource.name for resource in self._values if resource.kind is ResourceKind.GROUP)

    # How it changes.

    async def alter(self, resource: Resource, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> None:
        """Change some configs of a resource: all of them, or none when one cannot be."""

        def altered(values: Mapping[str, str]) -> dict[str, str]:
            changed = change_values(values, changes, _DEFINITIONS[resource.kind], self._beneath(resource))
            return self._checked(resource, changed)

        await self._change(resource, altered, validate_only=validate_only)

    async def replace(self, resource: Resource, values: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Let a resource have these configs and no others."""
        await self._change(resource, lambda _: self._checked(resource, values), validate_only=validate_only)

    def _checked(self, resource: Resource, values: Mapping[str, str]) -> dict[str, str]:
        if resource.kind is ResourceKind.GROUP:
            return check_group_configs(values)
        beside = topic_values(self._beneath(resource))
        return check_broker_configs(values, beside, cluster_wide=resource == ALL_BROKERS)

    def _beneath(self, resource: Resource) -> dict[str, str]:
        """What holds for a broker where nothing is set on this resource; groups have nothing but defaults."""
        if resource.kind is ResourceKind.GROUP:
            return {}
        beneath = broker_values(self._topic_defaults)
        return beneath if resource == ALL_BROKERS else {**beneath, **self.values(ALL_BROKERS)}

    async def _change(
        self, resource: Resource, change: Callable[[Mapping[str, str]], dict[str, str]], *, validate_only: bool
    ) -> None:
        if resource.kind is ResourceKind.GROUP:
            check_group_name(resource.name)
        if validate_only:
            self._check_room(resource, change(self.values(resource)))
            return
        key = _key(resource)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            before = {} if entry is None else _decode(entry)
            after = change(before)
            if after == before:
                return
            self._check_room(resource, after)
            compare = Compare(key, mod_revision=0 if entry is None else entry.mod_revision)
            operation: Operation = Put(key, msgspec.json.encode(_ConfigRecord(after))) if after else Delete(key)
            if (await self._store.txn([compare], [operation])).succeeded:
                return
        raise PenstockError(
            Reason.REQUEST_TIMED_OUT, f"Other clients kept changing the configs of {resource.name!r}. Try again"
        )

    def _check_room(self, resource: Resource, after: Mapping[str, str]) -> None:
        if resource.kind is not ResourceKind.GROUP or not after or resource in self._values:
            return
        if sum(each.kind is ResourceKind.GROUP for each in self._values) >= CONFIGURED_GROUPS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{CONFIGURED_GROUPS_MAX} groups have configs, which is the limit. Delete configs of groups that are not needed",
            )

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        concerned = False
        for event in events:
            resource = _resource(event.key)
            if event.entry is None:
                self._values.pop(resource, None)
            else:
                self._values[resource] = _decode(event.entry)
            concerned = concerned or resource in (self._node, ALL_BROKERS)
        if concerned:
            for hook in self.on_changed:
                hook()


_DEFINITIONS: Final[Mapping[ResourceKind, Callable[[str], ConfigDefinition]]] = {
    ResourceKind.BROKER: broker_config,
    ResourceKind.GROUP: group_config,
}


def _key(resource: Resource) -> str:
    return f"{PREFIX}{resource.kind.value}/{_DEFAULT if resource == ALL_BROKERS else resource.name}"


def _resource(key: str) -> Resource:
    kind, _, name = key.removeprefix(PREFIX).partition("/")
    resource = Resource(ResourceKind(kind), name)
    return ALL_BROKERS if resource == Resource(ResourceKind.BROKER, _DEFAULT) else resource


def _decode(entry: Entry) -> Mapping[str, str]:
    return decode_entry(_decoder, entry.key, entry.value).config
