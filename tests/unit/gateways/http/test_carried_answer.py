"""Answers of another node that is lost in the middle of them: cut where nobody may take them for whole, and said once in the log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from penstock.gateways.http import health
from penstock.gateways.http.carried_answer import CarriedAnswer
from penstock.gateways.http.peer_connection import Exchange, Head, NodeLost
from penstock.gateways.http.routing import Call
from penstock.types import NodeId
from tests.support.http_node import HttpNode


class Lost:
    """An exchange with a node that is gone after so much of the body."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        raise NodeLost

    def close(self) -> None:
        """There is nothing to close."""


def carried(monkeypatch: pytest.MonkeyPatch, exchange: Lost, *headers: tuple[bytes, bytes]) -> None:
    """Let /livez be answered by that node; before the gateway is made."""

    async def answer(call: Call) -> CarriedAnswer:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return CarriedAnswer(call.gateway, NodeId(2), cast(Exchange, exchange), Head(200, list(headers)), gone)

    monkeypatch.setattr(health, "_livez", answer)


@pytest.mark.parametrize("headers", [[(b"content-length", b"100")], [(b"transfer-encoding", b"chunked")]])
async def test_an_answer_that_is_not_whole_is_cut_without_a_complaint_of_the_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    headers: list[tuple[bytes, bytes]],
) -> None:
    carried(monkeypatch, Lost(b"{half"), *headers)
    async with HttpNode(tmp_path) as node:
        with pytest.raises(httpx.RemoteProtocolError):
            await node.client.get("/livez")
        [line] = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert "node 2 was lost in the middle of an answer" in line.getMessage()
        assert (await node.client.get("/health")).status_code == 200


async def test_a_stream_that_ends_behind_a_whole_line_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    carried(monkeypatch, Lost(b"{}\n"))
    async with HttpNode(tmp_path) as node:
        assert (await node.client.get("/livez")).text == "{}\n"
        assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
