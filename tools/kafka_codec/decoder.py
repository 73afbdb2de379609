"""Emits the decode function of one version: straight-line, bounds checked once at the end."""

from kafka_codec.emitter import PYTHON_TYPES, Emitter, annotation_of, default_of, element_type
from kafka_codec.schema import SCALARS, Field, Struct, singular


def _width(chars: list[str]) -> int:
    sizes = {char: size for char, size, _type in SCALARS.values()} | {"B": 1}
    return sum(sizes[char] for char in chars)


class Decoder(Emitter):
    """Emits `def _decode_x_vN(buf, pos)`."""

    def signature(self, name: str) -> str:
        return f"def {name}(buf: Buffer, pos: int) -> {self.message.class_name}:"

    def emit(self) -> str:
        self.line("try:")
        self.depth += 1
        self.line("size = len(buf)")
        head = len(self.lines)
        result = self.decode_struct(self.message.root)
        self.flush()
        self.line(f"message = {result}")
        text = "\n".join(self.lines)
        if "budget" in text:
            limit = "REQUEST_ELEMENTS_MAX" if self.kind == "request" else "RESPONSE_ELEMENTS_MAX"
            self.lines.insert(head, "    " * self.depth + f"budget = {limit}")
        if "view[" in text:
            self.lines.insert(head, "    " * self.depth + "view = memoryview(buf)")
        self.depth -= 1
        self.line("except DECODE_ERRORS as error:")
        self.line(f'    raise malformed("{self.label}", error) from None')
        self.line("if pos > size:")
        self.line(f'    raise truncated("{self.label}")')
        self.line("return message")
        return "\n".join(self.lines)

    def flush(self) -> None:
        if not self.run:
            return
        chars = [char for char, _name in self.run]
        names = [name for _char, name in self.run]
        self.run = []
        if chars == ["B"]:
            self.line(f"{names[0]} = buf[pos]")
        else:
            targets = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
            self.line(f"{targets} = {self.struct('u', chars)}(buf, pos)")
        self.line(f"pos += {_width(chars)}")

    def length(self, name: str, legacy_char: str) -> None:
        """Read a length or count into `name`; it is the value itself, and -1 is null."""
        if self.flexible:
            self.run.append(("B", name))
            self.flush()
            self.line(f"if {name} > 127:")
            self.line(f"    {name}, pos = uvarint_rest(buf, pos, {name})")
        else:
            self.run.append((legacy_char, name))
            self.flush()

    def decode_struct(self, struct: Struct) -> str:
        """Emit the reading of one structure; return the expression that builds it. The run may be left open."""
        ordered, tagged = self.fields(struct)
        values = {field.name: self.decode_field(field, struct) for field in ordered}
        if self.flexible:
            values |= self.decode_tags(tagged, struct)
        arguments, gap = [], False
        for field, _versions in struct.union():
            if field.name not in values:
                gap = True
            else:
                arguments.append(f"{field.name}={values[field.name]}" if gap else values[field.name])
        return f"{struct.class_name}({', '.join(arguments)})"

    def decode_field(self, field: Field, struct: Struct) -> str:
        name = self.name(field.name)
        self.decode_into(field, name, f"{struct.class_name}.{field.name}")
        return name

    def decode_into(self, field: Field, name: str, label: str) -> None:
        if field.is_array:
            self.decode_array(field, name, label)
        elif field.struct is not None:
            self.decode_nested(field, name, label)
        elif field.wire_type in SCALARS:
            self.run.append((SCALARS[field.wire_type][0], name))
        else:
            self.decode_variable(field.wire_type, field.nullable, name, label)

    def decode_nested(self, field: Field, name: str, label: str) -> None:
        assert field.struct is not None
        struct = self.message.structs[field.struct]
        if not field.nullable or field.tag is not None:
            built = self.decode_struct(struct)
            self.flush()
            self.line(f"{name} = {built}")
            return
        marker = self.name(f"{name}_marker")
        self.run.append(("b", marker))
        self.flush()
        self.line(f"{name}: {struct.class_name} | None = None")
        self.line(f"if {marker} == 1:")
        self.depth += 1
        built = self.decode_struct(struct)
        self.flush()
        self.line(f"{name} = {built}")
        self.depth -= 1
        self.line(f"elif {marker} != -1:")
        self.line(f'    raise marker_refused("{label}")')

    def decode_variable(self, wire_type: str, nullable: bool, name: str, label: str) -> None:
        """Read a string, bytes or records."""
        length = self.name(f"{name}_len")
        self.length(length, "h" if wire_type == "string" else "i")
        present = f"if {length}:" if self.flexible else f"if {length} >= 0:"
        if nullable:
            self.line(f"{name}: {PYTHON_TYPES[wire_type]} | None = None")
            self.line(present)
            self.depth += 1
        else:
            self.line(f"if not {length}:" if self.flexible else f"if {length} < 0:")
            self.line(f'    raise null_refused("{label}")')
        self.line(f"stop = pos + {length}" + (" - 1" if self.flexible else ""))
        tail = {"string": ".tobytes().decode()", "bytes": ".tobytes()", "records": ""}[wire_type]
        self.line(f"{name} = view[pos:stop]{tail}")
        self.line("pos = stop")
        if nullable:
            self.depth -= 1

    def decode_array(self, field: Field, name: str, label: str) -> None:
        count = self.name(f"{name}_count")
        self.length(count, "i")
        element = element_type(field, self.message)
        if field.nullable:
            self.line(f"{name}: list[{element}] | None = None")
            self.line(f"if {count}:" if self.flexible else f"if {count} >= 0:")
            self.depth += 1
        else:
            self.line(f"if not {count}:" if self.flexible else f"if {count} < 0:")
            self.line(f'    raise null_refused("{label}")')
        if self.flexible:
            self.line(f"{count} -= 1")
        self.line(f"budget -= {count}")
        self.line(f"if {count} > size - pos or budget < 0:")
        self.line(f'    raise count_refused("{label}", {count}, size - pos)')
        self.decode_elements(field, name, count, label)
        if field.nullable:
            self.depth -= 1

    def decode_elements(self, field: Field, name: str, count: str, label: str) -> None:
        annotation = "" if field.nullable else f": list[{element_type(field, self.message)}]"
        if field.wire_type == "int32":
            self.line(f"{name} = read_i32s(buf, pos, {count})")
            self.line(f"pos += 4 * {count}")
        elif field.wire_type == "uuid":
            self.line(f"{name} = [view[at:at + 16].tobytes() for at in range(pos, pos + 16 * {count}, 16)]")
            self.line(f"pos += 16 * {count}")
        elif field.wire_type in SCALARS:
            char, width, _type = SCALARS[field.wire_type]
            self.line(f'{name} = list(unpack_from(f">{{{count}}}{char}", buf, pos))')
            self.line(f"pos += {width} * {count}")
        else:
            self.line(f"{name}{annotation} = []")
            self.line(f"for _ in range({count}):")
            self.depth += 1
            if field.struct is None:
                element = self.name(singular(field.name))
                self.decode_variable(field.wire_type, False, element, label)
            else:
                element = self.decode_struct(self.message.structs[field.struct])
                self.flush()
            self.line(f"{name}.append({element})")
            self.depth -= 1

    def decode_tags(self, tagged: list[Field], struct: Struct) -> dict[str, str]:
        count = self.name("tags")
        self.run.append(("B", count))
        self.flush()
        if not tagged:
            self.line(f"if {count}:")
            self.line(f"    pos = skip_tags(buf, pos, {count})")
            return {}
        names = {field.name: self.name(field.name) for field in tagged}
        for field in tagged:
            annotation = annotation_of(field, self.message)
            self.line(f"{names[field.name]}: {annotation} = {default_of(field, self.message)}")
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127:")
        self.line(f"    {count}, pos = uvarint_rest(buf, pos, {count})")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        tag, tag_size = self.name("tag_number"), self.name("tag_size")
        self.line(f"{tag}, pos = read_uvarint(buf, pos)")
        self.line(f"{tag_size}, pos = read_uvarint(buf, pos)")
        stop = self.name("tag_stop")
        self.line(f"{stop} = pos + {tag_size}")
        for number, field in enumerate(tagged):
            self.line(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.depth += 1
            value = self.name(f"{field.name}_value")
            self.decode_into(field, value, f"{struct.class_name}.{field.name}")
            self.flush()
            self.line(f"{names[field.name]} = {value}")
            self.depth -= 1
        self.line("else:")
        self.line(f"    pos = {stop}")
        self.line(f"if pos != {stop}:")
        self.line(f'    raise tag_refused("{struct.class_name}")')
        self.depth -= 2
        return names
