"""Typed into ``nc``."""

import json
import shutil
import subprocess

import pytest

from penstock.address import parse_address
from tests.conformance.tinymq.client import request

NC = shutil.which("nc")


@pytest.mark.skipif(NC is None, reason="nc is not installed here")
def test_requests_can_be_typed_into_nc(address: str, topic: str) -> None:
    assert NC is not None
    where = parse_address(address)
    with subprocess.Popen(
        [NC, where.host, str(where.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nc:
        assert nc.stdin is not None
        assert nc.stdout is not None
        try:
            for typed, expected in [
                (request("produce", topic=topic, value="hello", key="k", partition=0), "hello"),
                ("", ""),
                (request("fetch", topic=topic, partition=0, offset=0), "hello"),
                ("what now?", "Invalid JSON"),
                ('{"type": "listTopics"}', topic),
            ]:
                nc.stdin.write(typed + "\n")
                nc.stdin.flush()
                if typed:
                    answer = nc.stdout.readline()
                    assert expected in answer
                    assert set(json.loads(answer)) in ({"ok", "data"}, {"ok", "error"})
        finally:
            nc.kill()
