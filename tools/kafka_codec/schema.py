"""The facts about Kafka's messages that the codec generator needs, read from the PyPI package `kio`.

kio carries one dataclass per structure, per API version, with the wire type, nullability, tag and default of each
field. Here they become one `Struct` per structure (the union over the versions, which turns into one class) that
knows its fields version by version (which turns into the encode and decode functions). Nothing here emits code.
"""

import dataclasses
import datetime as dt
import importlib
import pathlib
import types
import typing
from typing import Any, Final

import kio.schema
from kio.schema.index import api_key_map

SCALARS: Final = {
    "bool": ("?", 1, "bool"),
    "int8": ("b", 1, "int"),
    "int16": ("h", 2, "int"),
    "uint16": ("H", 2, "int"),
    "int32": ("i", 4, "int"),
    "int64": ("q", 8, "int"),
    "float64": ("d", 8, "float"),
    "uuid": ("16s", 16, "bytes"),
}
"""Wire type of fixed size: its struct character, its size in bytes, its Python type."""

_TIME_TYPES: Final = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_IMPLICIT_DEFAULTS: Final[dict[str, object]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": None,
}

# Class names are the root's name and the field's, in the singular. Where the field's own name says little or is no
# plain plural, this says what stands in the class name instead.
_NOUNS: Final = {
    "topic_data": "topic",
    "partition_data": "partition",
    "partition_responses": "partition",
    "responses": "topic",
    "forgotten_topics_data": "forgotten_topic",
    "results_by_transaction": "transaction_result",
    "results_by_partition": "partition_result",
    "current_voters": "replica_state",
    "topic_partitions": "topic_partitions",
    "acquired_records": "acquired_records",
    "acknowledgement_batches": "acknowledgement_batch",
    "next_cursor": "cursor",
}
_NOUNS_BY_STRUCT: Final = {
    "AlterConfigsResourceResponse": "resource",
    "OffsetFetchRequestTopics": "group_topic",
    "OffsetFetchResponseTopics": "group_topic",
    "OffsetFetchResponsePartitions": "group_partition",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """One field in one version. `struct` is the structure's name in kio, for fields that hold structures."""

    name: str
    kio_name: str
    wire_type: str
    is_array: bool = False
    nullable: bool = False
    tag: int | None = None
    struct: str | None = None
    default: object = False
    nullable_once: bool = False

    @property
    def is_optional_struct(self) -> bool:
        """A structure that may be absent: nullable, or tagged (absent from the wire when it says nothing)."""
        return self.struct is not None and not self.is_array and (self.nullable or self.tag is not None)


@dataclasses.dataclass
class Struct:
    """One structure: its class name and its fields in each version that has it."""

    kio_name: str
    class_name: str
    versions: dict[int, tuple[Field, ...]]

    def union(self) -> list[tuple[Field, list[int]]]:
        """Every field of any version with the versions that have it, in the wire's order, the tagged ones last."""
        order: list[str] = []
        newest: dict[str, Field] = {}
        versions: dict[str, list[int]] = {}
        for version in sorted(self.versions, reverse=True):
            before = len(order)
            for field in reversed(self.versions[version]):
                known = newest.setdefault(field.name, field)
                assert (known.wire_type, known.is_array, known.struct) == (
                    field.wire_type,
                    field.is_array,
                    field.struct,
                )
                if field.nullable and not known.nullable:
                    newest[field.name] = dataclasses.replace(known, nullable_once=True)
                versions.setdefault(field.name, []).insert(0, version)
                if field.name in order:
                    before = order.index(field.name)
                else:
                    order.insert(before, field.name)
        order.sort(key=lambda name: newest[name].tag is not None)
        return [(newest[name], versions[name]) for name in order]


@dataclasses.dataclass
class Message:
    """A request or a response with the structures it is made of, leaves first, itself last."""

    class_name: str
    root: Struct
    structs: dict[str, Struct]
    flexible: dict[int, bool]

    def places(self, struct: Struct) -> list[str]:
        """The fields that hold a structure, as `Class.field`."""
        return [
            f"{holder.class_name}.{field.name}"
            for holder in self.structs.values()
            for field, _versions in holder.union()
            if field.struct == struct.kio_name
        ]


@dataclasses.dataclass
class Api:
    """One API as it is to be generated."""

    key: int
    name: str
    class_prefix: str
    versions: list[int]
    request: Message
    response: Message

    @property
    def first_flexible(self) -> int | None:
        """The first version with compact lengths and tagged fields."""
        return next((version for version in self.versions if self.request.flexible[version]), None)


def load_api(name: str, version_max: int | None = None) -> Api:
    """Read one API from kio, up to `version_max` where kio knows versions that no released broker serves."""
    folder = pathlib.Path(kio.schema.__file__).parent / name
    versions = sorted(int(path.name[1:]) for path in folder.glob("v*"))
    if version_max is not None:
        versions = [version for version in versions if version <= version_max]
    key = next(key for key, api_name in api_key_map.items() if api_name == name)
    request = _load_message(name, "request", versions)
    response = _load_message(name, "response", versions)
    return Api(key, name, request.class_name.removesuffix("Request"), versions, request, response)


def add_older_version(
    message: Message,
    version: int,
    absent: set[tuple[str, str]],
    instead: typing.Mapping[tuple[str, str], Field] = types.MappingProxyType({}),
) -> None:
    """Describe a version that kio no longer carries as the next one without some of its fields, and with others `instead`."""
    for struct in message.structs.values():
        newer = struct.versions.get(version + 1)
        if newer is not None:
            struct.versions[version] = tuple(
                instead.get((struct.class_name, field.name), field)
                for field in newer
                if (struct.class_name, field.name) not in absent
            )
    message.flexible[version] = message.flexible[version + 1]


def _load_message(api: str, kind: str, versions: list[int]) -> Message:
    structs: dict[str, Struct] = {}
    flexible: dict[int, bool] = {}
    root_name = ""
    for version in reversed(versions):
        module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
        root = next(cls for cls in vars(module).values() if _entity_kind(cls) == kind)
        root_name = root.__name__
        flexible[version] = root.__flexible__
        _load_struct(root, root_name, root_name, version, structs)
    ordered = _leaves_first(structs, root_name)
    return Message(root_name, structs[root_name], ordered, flexible)


def _entity_kind(cls: object) -> str | None:
    kind = getattr(cls, "__type__", None) if isinstance(cls, type) else None
    return None if kind is None else str(kind.name)


def _load_struct(cls: Any, root: str, class_name: str, version: int, structs: dict[str, Struct]) -> None:
    struct = structs.get(cls.__name__)
    if struct is None:
        assert all(known.class_name != class_name for known in structs.values()), f"{class_name} names two structures"
        struct = structs[cls.__name__] = Struct(cls.__name__, class_name, {})
    if version in struct.versions:
        return
    sources = dataclasses.fields(cls)
    struct.versions[version] = tuple(_load_field(source) for source in sources)
    for field, source in zip(struct.versions[version], sources, strict=True):
        if field.struct is not None:
            noun = _NOUNS_BY_STRUCT.get(field.struct) or _NOUNS.get(field.name) or singular(field.name)
            nested_name = root + "".join(word.capitalize() for word in noun.split("_"))
            _load_struct(_inner_type(source.type), root, nested_name, version, structs)


def _load_field(source: "dataclasses.Field[Any]") -> Field:
    inner = _inner_type(source.type)
    is_array = _is_array(source.type)
    struct = str(inner.__name__) if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None
    name = source.name
    if struct is not None:
        wire_type = "struct"
    else:
        wire_type = source.metadata["kafka_type"]
        if wire_type in _TIME_TYPES:
            name += "_ms"
            wire_type = _TIME_TYPES[wire_type]
        elif wire_type == "error_code":
            wire_type = "int16"
    nullable = type(None) in typing.get_args(source.type) and (is_array or wire_type not in SCALARS)
    return Field(
        name=name,
        kio_name=source.name,
        wire_type=wire_type,
        is_array=is_array,
        nullable=nullable,
        tag=source.metadata.get("tag"),
        struct=struct,
        default=_default(source, wire_type, is_array, nullable),
    )


def _default(source: "dataclasses.Field[Any]", wire_type: str, is_array: bool, nullable: bool) -> object:
    default = source.default
    if is_array:
        return None if default is None else []
    if wire_type == "struct":
        return None
    if default is dataclasses.MISSING:
        return _IMPLICIT_DEFAULTS.get(wire_type, 0)
    if isinstance(default, dt.timedelta):
        return round(default.total_seconds() * 1000)
    if wire_type == "uuid":
        assert default is None
        return bytes(16)
    if default is None and not nullable:
        # kio's null for the moment that the protocol writes as -1.
        assert wire_type == "int64"
        return -1
    if wire_type in SCALARS and not isinstance(default, bool | float):
        return int(getattr(default, "value", default))
    return default


def _inner_type(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    if typing.get_origin(annotation) is tuple:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _is_array(annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    return typing.get_origin(annotation) is tuple


def _leaves_first(structs: dict[str, Struct], root_name: str) -> dict[str, Struct]:
    ordered: dict[str, Struct] = {}

    def visit(name: str) -> None:
        for field, _versions in structs[name].union():
            if field.struct is not None and field.struct not in ordered:
                visit(field.struct)
        ordered[name] = structs[name]

    visit(root_name)
    return ordered


def singular(name: str) -> str:
    """The name of one element of the field `name`."""
    if name.endswith("ies"):
        return name[:-3] + "y"
    if name.endswith("s") and not name.endswith("ss"):
        return name[:-1]
    return name
