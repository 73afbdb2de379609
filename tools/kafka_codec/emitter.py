"""What the emitters of decode and encode functions share: lines, local names, runs of fixed-size fields."""

from typing import Final

from kafka_codec.schema import SCALARS, Field, Message, Struct

PYTHON_TYPES: Final = {"string": "str", "bytes": "bytes", "records": "Buffer"}
_TAKEN: Final = {"buf", "pos", "view", "size", "budget", "out", "parts", "stop", "error", "message"} | {"type", "id"}
"""Names that the emitted functions use for themselves, and builtins that a field would hide."""


def element_type(field: Field, message: Message) -> str:
    """The Python type of the field, or of one element of it."""
    if field.struct is not None:
        return message.structs[field.struct].class_name
    if field.wire_type in SCALARS:
        return SCALARS[field.wire_type][2]
    return PYTHON_TYPES[field.wire_type]


def annotation_of(field: Field, message: Message) -> str:
    """The annotation of the field in its class."""
    element = element_type(field, message)
    annotation = f"list[{element}]" if field.is_array else element
    optional = field.nullable or field.nullable_once or field.is_optional_struct or field.wire_type == "records"
    return f"{annotation} | None" if optional else annotation


def default_of(field: Field, message: Message) -> str:
    """The default of the field in its class, as source code."""
    if field.struct is not None and not field.is_array and not field.is_optional_struct:
        return f"msgspec.field(default_factory={message.structs[field.struct].class_name})"
    if field.default == bytes(16):
        return "UUID_ZERO"
    return repr(field.default)


def struct_name(prefix: str, fmt: str) -> str:
    """The name of a precompiled struct: `_u_` for unpacking or `_p_` for packing, and its format as a name."""
    return f"_{prefix}_" + fmt.replace("16s", "U").replace("?", "t")


class Emitter:
    """Lines of one function's body, the local names taken, and the run of fixed-size fields not yet written out."""

    def __init__(self, message: Message, version: int, kind: str, structs_used: set[tuple[str, str]]) -> None:
        self.message = message
        self.version = version
        self.kind = kind
        self.flexible = message.flexible[version]
        self.has_records = any(
            field.wire_type == "records"
            for struct in message.structs.values()
            for field in struct.versions.get(version, ())
        )
        self.structs_used = structs_used
        self.lines: list[str] = []
        self.depth = 1
        self.names: set[str] = set(_TAKEN)
        self.run: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, wanted: str) -> str:
        """A local name no other field of this function has."""
        name, number = wanted, 2
        if name in _TAKEN:
            name += "_"
        while name in self.names:
            name = f"{wanted}_{number}"
            number += 1
        self.names.add(name)
        return name

    def struct(self, prefix: str, chars: list[str]) -> str:
        """The name of the precompiled struct for a run, for example `_u_hiB`."""
        fmt = "".join(chars)
        self.structs_used.add((prefix, fmt))
        return struct_name(prefix, fmt)

    def fields(self, struct: Struct) -> tuple[list[Field], list[Field]]:
        """This version's fields: those in order, and the tagged ones by tag."""
        fields = struct.versions[self.version]
        tagged = sorted((field for field in fields if field.tag is not None), key=lambda field: field.tag or 0)
        return [field for field in fields if field.tag is None], tagged

    @property
    def label(self) -> str:
        return self.message.class_name
