"""Writes ``src/penstock/wire/mq/mq_generated.py`` and its stub from ``proto/mq.proto``: ``python tools/generate_mq_proto.py``.

Three things differ from what protoc gives. The module has a name of ours, by which every tool knows that nobody edits it. Its
messages live in a pool of descriptors of their own: a program that has a broker in it, as a test may have, can load an
``mq_pb2`` of its own beside it, where the common pool would refuse a second file of the package ``mq``. And it does not ask for
the protobuf of the day: what it does works with every version that ``pyproject.toml`` allows, and other packages of the same
environment hold protobuf back.
"""

import re
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from grpc_tools import protoc

ROOT: Final = Path(__file__).resolve().parents[1]
PROTO: Final = ROOT / "proto" / "mq.proto"
TARGET: Final = ROOT / "src" / "penstock" / "wire" / "mq"
MODULE: Final = "penstock.wire.mq.mq_generated"


def generate() -> dict[str, str]:
    """The text of each generated file, by its name."""
    include = resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "protoc",
            f"-I{PROTO.parent}",
            f"-I{include}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            PROTO.name,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"protoc refused {PROTO}")
        code = Path(folder, "mq_pb2.py").read_text(encoding="utf-8")
        stub = Path(folder, "mq_pb2.pyi").read_text(encoding="utf-8")
    code = _replaced(code, "_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    code = _replaced(code, "'mq_pb2'", f"'{MODULE}'")
    code, count = re.subn(
        r"^# Protobuf Python Version: .*\n|^from google.protobuf import runtime_version .*\n"
        r"|^_runtime_version.ValidateProtobufRuntimeVersion\(\n(?: .*\n)*\)\n",
        "",
        code,
        flags=re.MULTILINE,
    )
    if count != 3:
        raise SystemExit("protoc's code asks for its version in another way: look at what it writes")
    return {"mq_generated.py": code, "mq_generated.pyi": stub}


def _replaced(code: str, old: str, new: str) -> str:
    if code.count(old) != 1:
        raise SystemExit(f"protoc's code has {old} {code.count(old)} times, not once: look at what this version writes")
    return code.replace(old, new)


def main() -> int:
    """Write the files."""
    for name, text in generate().items():
        (TARGET / name).write_text(text, encoding="utf-8")
        print(TARGET.relative_to(ROOT) / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
