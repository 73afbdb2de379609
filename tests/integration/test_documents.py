"""The commands and programs in the documents do what they say: marked blocks are run against a real broker.

A block is marked by a comment on the line before it: ``<!-- test: run -->``, with ``needs=PROGRAM`` when it needs one
(or several, with commas) that may be absent. ``<!-- test: prints -->`` marks what the block before it prints: each of its lines, in this order.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import kafka
import pytest

from penstock.testing.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = "127.0.0.1:9092"
HTTP_ADDRESS = "127.0.0.1:8080"
GRPC_ADDRESS = "127.0.0.1:50051"
TCP_WORDS = "127.0.0.1 4040"
"""As nc takes it."""

NAME = r"([a-z][\w.-]*)"
WRITES = re.compile(
    rf"penstock (?:topic create|produce) {NAME}|pipeline (?:transform|replay|stats) .*--to {NAME}|/v1/topics\?name={NAME}"
    rf'|/topics -d .{{"name": "{NAME}"|createTopic", "topic": "{NAME}"|create_topic\("{NAME}"|CreateTopicRequest\(name="{NAME}"'
)
"""A topic that a command or a program of a document makes or writes to."""

BLOCK = re.compile(r"<!-- test: (run|prints)(?: needs=(\S+))? -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Example:
    document: str
    language: str
    text: str
    needs: str | None
    prints: list[str]


def examples() -> list[Example]:
    found: list[Example] = []
    for path in DOCUMENTS:
        for kind, needs, language, text in BLOCK.findall(path.read_text(encoding="utf-8")):
            if kind == "run":
                found.append(Example(path.relative_to(ROOT).as_posix(), language, text, needs or None, []))
            else:
                found[-1].prints = text.splitlines()
    return found


EXAMPLES = examples()


def run(example: Example, broker: BrokerProcess) -> str:
    addresses = broker.addresses
    bootstrap, http = broker.bootstrap, addresses["http"]
    text = example.text.replace(ADDRESS, bootstrap).replace(HTTP_ADDRESS, http).replace(GRPC_ADDRESS, addresses["grpc"])
    text = text.replace(TCP_WORDS, addresses["tcp"].replace(":", " "))
    bin_dir = Path(sys.executable).parent
    path = f"{bin_dir}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PENSTOCK_BOOTSTRAP": bootstrap, "PENSTOCK_HTTP": http}
    command = [sys.executable, "-c", text] if example.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{example.document}:\n{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def need_programs(example: Example) -> None:
    for program in example.needs.split(",") if example.needs else ():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def name_of(example: Example) -> str:
    return f"{example.document}: {example.text.strip().splitlines()[0][:40]}"


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_does_what_it_says(broker_process, example) -> None:
    need_programs(example)
    printed = run(example, broker_process).splitlines()
    position = 0
    for line in example.prints:
        assert line in printed[position:], f"{example.document} should print {line!r}, and printed {printed}"
        position = printed.index(line, position) + 1


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_can_be_run_again(broker_process, example) -> None:
    """By a reader who comes back to a broker that has all of it already."""
    need_programs(example)
    for _ in range(2):
        run(example, broker_process)


def test_the_readme_has_examples_of_each_kind() -> None:
    readme = [example for example in EXAMPLES if example.document == "README.md"]
    assert {example.language for example in readme} == {"sh", "python"}
    assert sum(bool(example.prints) for example in readme) >= 3


def test_no_two_pages_write_to_the_same_topic() -> None:
    """So that a reader who has followed one page can follow any other."""
    pages: dict[str, set[str]] = {}
    for path in DOCUMENTS:
        for match in WRITES.finditer(path.read_text(encoding="utf-8")):
            pages.setdefault(match[match.lastindex or 0], set()).add(path.relative_to(ROOT).as_posix())
    assert {topic: sorted(found) for topic, found in pages.items() if len(found) > 1} == {}
    assert len(pages) >= 20


def documented_versions() -> dict[int, tuple[int, int]]:
    """The table of APIs in docs/limitations.md: keys in the first column, a range for each in the third."""
    text = (ROOT / "docs" / "limitations.md").read_text(encoding="utf-8")
    found: dict[int, tuple[int, int]] = {}
    for keys, versions in re.findall(r"^\| ([\d, ]+) \| [^|]+ \| ([^|;]+?)(?:;[^|]*)? \|$", text, flags=re.MULTILINE):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", versions.partition(" without")[0])
        for key, (low, high) in zip(keys.split(", "), ranges, strict=True):
            found[int(key)] = (int(low), int(high or low))
    return found


def test_the_limitations_list_exactly_the_apis_that_are_served(broker_process) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker_process.bootstrap)
    try:
        served = {int(key): tuple(versions) for key, versions in admin.api_versions().items()}
    finally:
        admin.close()
    assert documented_versions() == served
