"""Writes the modules ``*_generated.py`` of gRPC's messages, and their stubs, from ``proto/``: ``python tools/generate_protos.py``.

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
SOURCES: Final = {"mq": "penstock.wire.mq", "etcd": "penstock.wire.etcd"}
"""The files of ``proto/``, and the package of each one's module."""


def generate() -> dict[str, str]:
    """The text of each generated file, by its path below the repository."""
    found: dict[str, str] = {}
    for name, package in SOURCES.items():
        code, stub = _generate(name, f"{package}.{name}_generated")
        folder = "src/" + package.replace(".", "/")
        found[f"{folder}/{name}_generated.py"] = code
        found[f"{folder}/{name}_generated.pyi"] = stub
    return found


def _generate(name: str, module: str) -> tuple[str, str]:
    include = resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{include}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"{name}.proto",
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"protoc refused {name}.proto")
        code = Path(folder, f"{name}_pb2.py").read_text(encoding="utf-8")
        stub = Path(folder, f"{name}_pb2.pyi").read_text(encoding="utf-8")
    code = _replaced(code, "_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    code = _replaced(code, f"'{name}_pb2'", f"'{module}'")
    code, count = re.subn(
        r"^# Protobuf Python Version: .*\n|^from google.protobuf import runtime_version .*\n"
        r"|^_runtime_version.ValidateProtobufRuntimeVersion\(\n(?: .*\n)*\)\n",
        "",
        code,
        flags=re.MULTILINE,
    )
    if count != 3:
        raise SystemExit("protoc's code asks for its version in another way: look at what it writes")
    return code, stub


def _replaced(code: str, old: str, new: str) -> str:
    if code.count(old) != 1:
        raise SystemExit(f"protoc's code has {old} {code.count(old)} times, not once: look at what this version writes")
    return code.replace(old, new)


def main() -> int:
    """Write the files."""
    for name, text in generate().items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
