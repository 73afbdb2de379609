"""Handlers register themselves: a file in the folder is all that an API needs, and what is registered is what clients are shown."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.gateways.kafka import handlers
from penstock.gateways.kafka.handlers import HANDLERS, handles
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from tests.support.kafka_node import KafkaNode

FOLDER = Path(handlers.__file__).parent
SERVED = [
    (0, 0, 13),
    (1, 4, 18),
    (2, 1, 11),
    (3, 0, 13),
    (8, 2, 10),
    (9, 1, 10),
    (10, 0, 6),
    (11, 0, 9),
    (12, 0, 4),
    (13, 0, 5),
    (14, 0, 5),
    (15, 0, 6),
    (16, 0, 5),
    (17, 0, 1),
    (18, 0, 4),
    (19, 2, 7),
    (20, 1, 6),
    (21, 0, 2),
    (22, 0, 5),
    (23, 2, 4),
    (29, 1, 3),
    (30, 1, 3),
    (31, 1, 3),
    (32, 0, 4),
    (33, 0, 2),
    (34, 1, 2),
    (35, 1, 5),
    (36, 0, 2),
    (37, 0, 3),
    (42, 0, 2),
    (43, 0, 2),
    (44, 0, 1),
    (45, 0, 1),
    (46, 0, 0),
    (47, 0, 0),
    (48, 0, 1),
    (49, 0, 1),
    (50, 0, 0),
    (51, 0, 0),
    (55, 0, 2),
    (60, 0, 2),
    (68, 0, 1),
    (74, 0, 1),
    (75, 0, 0),
]
"""API key, first and last version."""


async def test_clients_are_shown_these_apis_and_versions(node: KafkaNode) -> None:
    answer = await node.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("test", "1"), 3)
    assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == SERVED


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_the_codec_reads_and_writes_every_version_that_is_served(key: ApiKey) -> None:
    served = set(HANDLERS[key].versions)
    assert served
    assert served <= API[key].decode_request_table.keys()
    assert served <= API[key].encode_response_table.keys()


def test_every_numbered_file_serves_the_api_of_its_number_and_no_other() -> None:
    by_file = {path.stem: int(path.stem[1:3]) for path in FOLDER.glob("k[0-9][0-9]_*.py")}
    assert len(by_file) == len(set(by_file.values()))
    files = {key: handler.handle.__module__.rpartition(".")[2] for key, handler in HANDLERS.items()}
    assert by_file == {stem: int(key) for key, stem in files.items() if stem != "refusals"}


def test_an_api_has_one_handler() -> None:
    with pytest.raises(AssertionError, match="FETCH has two handlers"):
        handles(ApiKey.FETCH, versions=(4, 18))(print)


def test_handlers_are_found_in_a_package_that_is_zipped(tmp_path: Path) -> None:
    source = FOLDER.parents[3]
    assert source.name == "src"
    zipped = tmp_path / "penstock.zip"
    with zipfile.ZipFile(zipped, "w") as file:
        for path in (source / "penstock").rglob("*.py"):
            file.write(path, path.relative_to(source))
    code = "from penstock.gateways.kafka import handlers as h; print(h.__file__, len(h.HANDLERS))"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(zipped)}, capture_output=True, text=True, check=True
    )
    place, count = found.stdout.split()
    assert place.startswith(str(zipped))
    assert int(count) == len(SERVED)
