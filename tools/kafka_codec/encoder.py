"""Emits the encode function of one version: few packs, records handed out as they are."""

from kafka_codec.emitter import Emitter, annotation_of, default_of
from kafka_codec.schema import SCALARS, Field, Struct, singular


class Encoder(Emitter):
    """Emits `def _encode_x_vN(message)`."""

    out = "out"

    def signature(self, name: str) -> str:
        return f"def {name}(message: {self.message.class_name}) -> list[Buffer]:"

    def emit(self) -> str:
        self.names.add("message")
        self.line("out = bytearray()")
        if self.has_records:
            self.line("parts: list[Buffer] = []")
        self.encode_struct(self.message.root, "message")
        self.flush()
        if self.has_records:
            self.line("parts.append(out)")
            self.line("return parts")
        else:
            self.line("return [out]")
        return "\n".join(self.lines)

    def flush(self) -> None:
        if not self.run:
            return
        chars = [char for char, _expression in self.run]
        expressions = [expression for _char, expression in self.run]
        self.run = []
        if chars == ["B"]:
            self.line(f"{self.out}.append({expressions[0]})")
        else:
            self.line(f"{self.out} += {self.struct('p', chars)}({', '.join(expressions)})")

    def length(self, name: str, legacy_char: str) -> None:
        """Write `name`, which holds the value as it stands on the wire, after the open run."""
        if not self.flexible:
            self.run.append((legacy_char, name))
            self.flush()
            return
        if not self.run:
            self.line(f"if {name} < 128:")
            self.line(f"    {self.out}.append({name})")
            self.line("else:")
            self.line(f"    {self.out} += uvarint({name})")
            return
        chars = [char for char, _expression in self.run]
        expressions = ", ".join(expression for _char, expression in self.run)
        self.run = []
        both = f"{self.struct('p', [*chars, 'B'])}({expressions}, {name})"
        alone = f"bytes(({expressions},))" if chars == ["B"] else f"{self.struct('p', chars)}({expressions})"
        self.line(f"{self.out} += {both} if {name} < 128 else {alone} + uvarint({name})")

    def encode_struct(self, struct: Struct, expression: str) -> None:
        """Emit the writing of one structure; the run may be left open."""
        ordered, tagged = self.fields(struct)
        optional = {
            field.name for field, _versions in struct.union() if annotation_of(field, self.message).endswith("None")
        }
        for field in ordered:
            value = f"{expression}.{field.name}"
            if field.name in optional and not field.nullable:
                self.line(
                    f'assert {value} is not None, "{struct.class_name}.{field.name} is never null in this version"'
                )
            self.encode_field(field, value)
        if self.flexible:
            self.encode_tags(tagged, expression)

    def encode_field(self, field: Field, expression: str) -> None:
        if field.is_array:
            self.encode_array(field, expression)
        elif field.struct is not None:
            self.encode_nested(field, expression)
        elif field.wire_type in SCALARS:
            self.run.append((SCALARS[field.wire_type][0], expression))
        else:
            self.encode_variable(field.wire_type, field.nullable, expression, field.name)

    def encode_nested(self, field: Field, expression: str) -> None:
        assert field.struct is not None
        struct = self.message.structs[field.struct]
        name = self.name(field.name)
        if not field.nullable:
            self.line(f"{name} = {expression}")
            self.encode_struct(struct, name)
            return
        self.line(f"{name} = {expression}")
        self.run.append(("b", f"-1 if {name} is None else 1"))
        self.flush()
        self.line(f"if {name} is not None:")
        self.depth += 1
        self.encode_struct(struct, name)
        self.flush()
        self.depth -= 1

    def encode_variable(self, wire_type: str, nullable: bool, expression: str, wanted: str) -> None:
        """Write a string, bytes or records."""
        data, length = self.name(wanted), self.name(f"{wanted}_len")
        plus = " + 1" if self.flexible else ""
        null = "0" if self.flexible else "-1"
        if wire_type == "string":
            if nullable:
                value = self.name(f"{wanted}_or_null")
                self.line(f"{value} = {expression}")
                self.line(f'{data} = b"" if {value} is None else {value}.encode()')
                self.line(f"{length} = {null} if {value} is None else len({data}){plus}")
            else:
                self.line(f"{data} = {expression}.encode()")
                self.line(f"{length} = len({data}){plus}")
        else:
            self.line(f"{data} = {expression}")
            if nullable:
                self.line(f"{length} = {null} if {data} is None else len({data}){plus}")
            else:
                self.line(f"{length} = len({data}){plus}")
        self.length(length, "h" if wire_type == "string" else "i")
        if nullable and wire_type != "string":
            self.line(f"if {data} is not None:")
            self.depth += 1
        if wire_type == "records":
            self.line(f"if {length} > RECORDS_INLINE_BYTES_MAX:")
            self.line(f"    parts += (out, {data})")
            self.line("    out = bytearray()")
            self.line("else:")
            self.line(f"    out += {data}")
        else:
            self.line(f"{self.out} += {data}")
        if nullable and wire_type != "string":
            self.depth -= 1

    def encode_array(self, field: Field, expression: str) -> None:
        name = self.name(field.name)
        self.line(f"{name} = {expression}")
        if field.wire_type == "int32":
            self.flush()
            helper = "compact_i32s" if self.flexible else "legacy_i32s"
            null = r'b"\x00"' if self.flexible else r'b"\xff\xff\xff\xff"'
            call = f"{helper}({name})"
            self.line(
                f"{self.out} += {null} if {name} is None else {call}" if field.nullable else f"{self.out} += {call}"
            )
            return
        count = self.name(f"{field.name}_count")
        null = "0" if self.flexible else "-1"
        wire_count = f"len({name})" + (" + 1" if self.flexible else "")
        self.line(
            f"{count} = {null} if {name} is None else {wire_count}" if field.nullable else f"{count} = {wire_count}"
        )
        self.length(count, "i")
        if field.nullable:
            self.line(f"if {name} is not None:")
            self.depth += 1
        self.encode_elements(field, name)
        if field.nullable:
            self.depth -= 1

    def encode_elements(self, field: Field, name: str) -> None:
        if field.wire_type == "uuid":
            self.line(f'{self.out} += b"".join({name})')
        elif field.wire_type in SCALARS:
            char = SCALARS[field.wire_type][0]
            self.line(f'{self.out} += pack(f">{{len({name})}}{char}", *{name})')
        else:
            element = self.name(singular(field.name))
            self.line(f"for {element} in {name}:")
            self.depth += 1
            if field.struct is None:
                self.encode_variable(field.wire_type, False, element, f"{field.name}_data")
            else:
                self.encode_struct(self.message.structs[field.struct], element)
                self.flush()
            self.depth -= 1

    def encode_tags(self, tagged: list[Field], expression: str) -> None:
        if not tagged:
            self.run.append(("B", "0"))
            return
        count = self.name("tags")
        present = {field.name: self.tag_is_present(field, f"{expression}.{field.name}") for field in tagged}
        self.line(f"{count} = " + " + ".join(f"({test})" for test in present.values()))
        self.run.append(("B", count))
        self.flush()
        self.line(f"if {count}:")
        self.depth += 1
        for field in tagged:
            self.line(f"if {present[field.name]}:")
            self.depth += 1
            content = self.name(f"{field.name}_tag")
            self.line(f"{content} = bytearray()")
            outer, self.out = self.out, content
            value = f"{expression}.{field.name}"
            if field.struct is not None and not field.is_array:
                self.encode_struct(self.message.structs[field.struct], value)
            else:
                self.encode_field(field, value)
            self.flush()
            self.out = outer
            self.line(f"{self.out} += uvarint({field.tag}) + uvarint(len({content}))")
            self.line(f"{self.out} += {content}")
            self.depth -= 1
        self.depth -= 1

    def tag_is_present(self, field: Field, expression: str) -> str:
        """The test for a tagged field that says something, so that it has to be on the wire."""
        default = field.default
        if default is None or field.is_optional_struct:
            return f"{expression} is not None"
        if field.is_array:
            return f"len({expression}) > 0"
        if isinstance(default, bool):
            return f"not {expression}" if default else f"{expression}"
        return f"{expression} != {default_of(field, self.message)}"
