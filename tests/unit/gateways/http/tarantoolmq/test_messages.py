"""Publishing and reading where the conformance tests cannot reach: what passes is tried again, what is written is waited for."""

import asyncio
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.settings import HttpSettings
from penstock.types import Flush
from tests.support.held_disk import HeldDisk
from tests.support.http_node import HttpNode, becomes

PATH = "/topics/orders/messages"


def refusing(node: HttpNode, monkeypatch: pytest.MonkeyPatch, times: int, reason: Reason) -> list[int]:
    """The publisher refuses so many calls; gives back the list that counts them."""
    publish = node.broker.publisher.publish
    refused: list[int] = []

    def refuse(*arguments) -> None:
        if len(refused) < times:
            refused.append(1)
            raise PenstockError(reason, "not now")
        publish(*arguments)

    monkeypatch.setattr(node.broker.publisher, "publish", refuse)
    return refused


@pytest.mark.parametrize("body", [{"value": "x"}, [{"value": "x"}]])
async def test_what_passes_by_itself_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: object
) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(retries=2, retry_backoff_ms=1)) as node:
        await node.create("orders", 1)
        refused = refusing(node, monkeypatch, 2, Reason.NOT_ENOUGH_REPLICAS)
        answer = await node.client.post(PATH, json=body)
        assert answer.status_code == 200
        assert len(refused) == 2
        assert node.broker.partition("orders", 0).log.next_offset == 1


async def test_after_so_many_tries_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(retries=2, retry_backoff_ms=1)) as node:
        await node.create("orders", 1)
        refused = refusing(node, monkeypatch, 6, Reason.LEADER_NOT_AVAILABLE)
        answer = await node.client.post(PATH, json={"value": "x"})
        assert (answer.status_code, answer.json()) == (503, {"error": "not now"})
        assert len(refused) == 3
        answer = await node.client.post(PATH, json=[{"value": "x"}, {"value": "y"}])
        assert answer.json() == {"results": [{"error": "not now"}] * 2}


@pytest.mark.parametrize(("retries", "reason"), [(0, Reason.NOT_ENOUGH_REPLICAS), (3, Reason.STORAGE_ERROR)])
async def test_what_does_not_pass_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, reason: Reason
) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(retries=retries, retry_backoff_ms=1)) as node:
        await node.create("orders", 1)
        refused = refusing(node, monkeypatch, 9, reason)
        answer = await node.client.post(PATH, json={"value": "x"})
        assert (answer.status_code, len(refused)) == (503, 1)


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_a_request_that_takes_too_long_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fast_lane: bool
) -> None:
    bounds, http = HttpBounds(fast_lane=fast_lane), HttpSettings(request_timeout_ms=1)
    async with HttpNode(tmp_path, bounds, http=http) as node:
        await node.create("orders", 1)
        waiting = []
        monkeypatch.setattr(node.broker.publisher, "publish", lambda *arguments: waiting.append(arguments[-1]))
        asked = asyncio.ensure_future(node.client.post(PATH, json={"value": "x"}))
        await becomes(lambda: node.http.look_after() or asked.done())
        answer = asked.result()
        assert answer.status_code == 504
        assert answer.json() == {
            "error": "There was no answer within 1 ms. The request may still be processed: check before you repeat it."
        }
        # Too late for anybody to be told.
        waiting[0]([PenstockError(Reason.STORAGE_ERROR)])
        assert (await node.client.get("/health")).status_code == 200


async def test_a_batch_has_a_bound(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(batch_records_max=2)) as node:
        await node.create("orders", 1)
        answer = await node.client.post(PATH, json=[{"value": "x"}] * 3)
        assert answer.status_code == 413
        assert answer.json() == {"error": "A batch has at most 2 messages, not 3. Send several batches."}
        assert (await node.client.post(PATH, json=[{"value": "x"}] * 2)).status_code == 200


async def test_a_read_waits_for_the_sync_of_what_was_acknowledged(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with HttpNode(tmp_path, flush=Flush.SYNC, disk=disk) as node:
        await node.create("orders", 1)
        partition = node.broker.partition("orders", 0)
        with disk.held():
            published = await node.client.post(PATH, json={"value": "x", "acks": "leader"})
            assert (published.status_code, partition.high_watermark) == (200, 0)
            path = "/topics/orders/partitions/0"
            asked = [asyncio.ensure_future(node.client.get(f"{path}/{call}")) for call in ("messages", "offsets")]
            await becomes(lambda: len(partition._readers) == 2 or any(answer.done() for answer in asked))
            assert not any(answer.done() for answer in asked), "it answered without the acknowledged record"
            disk.release()
            messages, offsets = [(await answer).json() for answer in asked]
        assert [message["value"] for message in messages["messages"]] == ["x"]
        assert offsets == {"high_watermark": 1, "low_watermark": 0}


async def test_retention_is_no_mistake_of_the_readers(node: HttpNode) -> None:
    await node.create("orders", 1)
    await node.client.post(PATH, json=[{"value": str(n), "acks": "all"} for n in range(5)])
    partition = node.broker.partition("orders", 0)
    partition.log.delete_before(3)
    answer = (await node.client.get("/topics/orders/partitions/0/messages?offset=1")).json()
    assert [message["value"] for message in answer["messages"]] == ["3", "4"]
    watermarks = (await node.client.get("/topics/orders/partitions/0/offsets")).json()
    assert watermarks == {"high_watermark": 5, "low_watermark": 3}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Missing message value"),
        (b" \n", "Missing message value"),
        (b'{"value":"\xff"}', "The message is not JSON: "),
        (b'["\xff', "The body is not JSON: "),
    ],
)
async def test_a_body_that_is_no_text_is_refused_and_nothing_is_published(
    node: HttpNode, body: bytes, text: str
) -> None:
    await node.create("orders", 1)
    answer = await node.client.post("/topics/orders/messages", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(text)
    assert node.broker.partition("orders", 0).log.next_offset == 0


@pytest.mark.parametrize("form", [b"[%s]", b'{"messages":[%s]}'])
async def test_a_message_that_is_not_utf_8_is_refused_alone(node: HttpNode, form: bytes) -> None:
    await node.create("orders", 1)
    body = form % b'{"value":"a"},{"value":"\xff"},{"value":"b"}'
    answer = await node.client.post("/topics/orders/messages", content=body)
    first, bad, last = answer.json()["results"]
    assert (first["offset"], last["offset"]) == (0, 1)
    assert bad["error"].startswith("The message is not JSON: ")
