"""Dynamic configs of brokers and groups, in memory and in the metadata store.

In the store, ``configs/brokers/<node>``, ``configs/brokers/default`` (all brokers) and ``configs/groups/<group>`` hold ``{"config": {...}}``,
with normalized values. A resource without configs has no entry. Each change is one compare-and-set, and is visible when the call returns.
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
"""How often a change is tried again because of a concurrent one."""


class ResourceKind(Enum):
    """The kind of resource that has configs."""

    BROKER = "brokers"
    GROUP = "groups"


class ConfigResource(NamedTuple):
    """One broker or group; a broker without a name means all brokers."""

    kind: ResourceKind
    name: str


ALL_BROKERS: Final = ConfigResource(ResourceKind.BROKER, "")


class _ConfigRecord(msgspec.Struct, frozen=True):
    config: dict[str, str]


_decoder: Final = msgspec.json.Decoder(_ConfigRecord)


class DynamicConfigs:
    """The configs of all brokers and groups. Empty until :meth:`load`."""

    def __init__(self, store: MetadataStore, node_id: NodeId, topic_defaults: Mapping[str, str]) -> None:
        """``topic_defaults`` are the topic configs in the broker's configuration file, with which values must be consistent."""
        self._store = store
        self._node: Final = ConfigResource(ResourceKind.BROKER, str(node_id))
        self._topic_defaults = topic_defaults
        self._values: dict[ConfigResource, Mapping[str, str]] = {}
        self._held_events: list[Event] | None = []
        self.on_changed: Final[list[Callable[[], None]]] = []
        """Called when a config changed that applies to this broker."""

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        self._store.subscribe(PREFIX, self._take)
        found = await self._store.range(PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            self._values[_resource(entry.key)] = _decode(entry)
        self._take([event for event in held if event.revision > found.revision])

    # The present values.

    def values(self, resource: ConfigResource) -> Mapping[str, str]:
        """The values that were set on this resource."""
        return self._values.get(resource, {})

    def layers(self) -> list[ConfigLayer]:
        """The values that were set for this broker, strongest first."""
        return [
            (ConfigSource.DYNAMIC_BROKER, self.values(self._node)),
            (ConfigSource.DYNAMIC_DEFAULT, self.values(ALL_BROKERS)),
        ]

    def topic_layers(self) -> list[ConfigLayer]:
        """The same for topics, by the names of topic configs, with the broker's configuration file last."""
        dynamic = [(source, topic_values(values)) for source, values in self.layers()]
        return [*dynamic, (ConfigSource.STATIC_BROKER, self._topic_defaults)]

    def topic_defaults(self) -> dict[str, str]:
        """The default configs of topics."""
        merged: dict[str, str] = {}
        for _, values in reversed(self.topic_layers()):
            merged.update(values)
        return merged

    def number(self, name: str) -> int | None:
        """The value that was set for this broker, if any."""
        text = next((values[name] for _, values in self.layers() if name in values), None)
        return None if text is None else int(text)

    def group_names(self) -> list[str]:
        """The groups that have configs."""
        return sorted(resource.name for resource in self._values if resource.kind is ResourceKind.GROUP)

    # Changes.

    async def alter(
        self, resource: ConfigResource, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change some configs of a resource, all of them or none."""

        def altered(values: Mapping[str, str]) -> dict[str, str]:
            changed = change_values(values, changes, _DEFINITIONS[resource.kind], self._beneath(resource))
            return self._checked(resource, changed)

        await self._change(resource, altered, validate_only=validate_only)

    async def replace(
        self, resource: ConfigResource, values: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace all configs of a resource."""
        await self._change(resource, lambda _: self._checked(resource, values), validate_only=validate_only)

    def _checked(self, resource: ConfigResource, values: Mapping[str, str]) -> dict[str, str]:
        if resource.kind is ResourceKind.GROUP:
            return check_group_configs(values)
        beside = topic_values(self._beneath(resource))
        return check_broker_configs(values, beside, cluster_wide=resource == ALL_BROKERS)

    def _beneath(self, resource: ConfigResource) -> dict[str, str]:
        """The values of a broker without those of this resource; groups only have defaults."""
        if resource.kind is ResourceKind.GROUP:
            return {}
        beneath = broker_values(self._topic_defaults)
        return beneath if resource == ALL_BROKERS else {**beneath, **self.values(ALL_BROKERS)}

    async def _change(
        self, resource: ConfigResource, change: Callable[[Mapping[str, str]], dict[str, str]], *, validate_only: bool
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

    def _check_room(self, resource: ConfigResource, after: Mapping[str, str]) -> None:
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


def _key(resource: ConfigResource) -> str:
    return f"{PREFIX}{resource.kind.value}/{_DEFAULT if resource == ALL_BROKERS else resource.name}"


def _resource(key: str) -> ConfigResource:
    kind, _, name = key.removeprefix(PREFIX).partition("/")
    resource = ConfigResource(ResourceKind(kind), name)
    return ALL_BROKERS if resource == ConfigResource(ResourceKind.BROKER, _DEFAULT) else resource


def _decode(entry: Entry) -> Mapping[str, str]:
    return decode_entry(_decoder, entry.key, entry.value).config
