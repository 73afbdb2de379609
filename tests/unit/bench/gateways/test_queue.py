"""Workers of a queue against a scripted server that hands out records and wants acks."""

import json
import re
import threading

import pytest

from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1
from penstock.bench.gateways.queue import LeaseWorker, StreamWorker, records_needed
from penstock.bench.pump import Pump
from tests.unit.bench.gateways.scripted import scripted_server


class ScriptedQueue:
    """Leases ``records`` records over two partitions, and keeps what was acked."""

    def __init__(self, records: int, refuse_acks: bool = False) -> None:
        self.left = [(index % 2, index // 2) for index in range(records)]
        self.acked: list[tuple[int, int]] = []
        self.refuse_acks = refuse_acks
        self._lock = threading.Lock()

    def connection(self):
        rest = b""

        def answer(data: bytes) -> bytes:
            nonlocal rest
            rest += data
            out = b""
            while (head_end := rest.find(b"\r\n\r\n")) >= 0:
                length = re.search(rb"Content-Length: (\d+)", rest[:head_end])
                end = head_end + 4 + (int(length[1]) if length else 0)
                if len(rest) < end:
                    break
                path = rest.split(b" ", 2)[1].decode()
                body = rest[head_end + 4 : end]
                rest = rest[end:]
                with self._lock:
                    out += self._serve(path, json.loads(body) if body else {})
            return out

        return answer

    def _serve(self, path: str, body: dict) -> bytes:
        if path.startswith("/v1/consume?"):
            lines = b"".join(self._line(*place) + b"\n" for place in self.left)
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + http1.chunk(lines)
        if path == "/v1/lease":
            given, self.left = self.left[: body["max_records"]], self.left[body["max_records"] :]
            text = b'{"records":[' + b",".join(self._line(*place) for place in given) + b"]}"
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        assert path == "/v1/ack"
        if self.refuse_acks:
            return b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"
        assert (body["group"], body["owner"]) == ("bench", "me")
        self.acked += [(body["partition"], offset) for offset in body.get("offsets", [body.get("offset")])]
        return b"HTTP/1.1 204 No Content\r\n\r\n"

    @staticmethod
    def _line(partition: int, offset: int) -> bytes:
        record = {"partition": partition, "offset": offset, "attempts": 1, "key": "", "value": "v" * 100}
        return json.dumps(record, separators=(",", ":")).encode()


def worked(queue: ScriptedQueue, worker, records_max: int = 1 << 62):
    with scripted_server(queue.connection) as address, Pump([worker(address)]) as pump:
        return pump.run(30.0, records_max)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_worker_acks_every_record_once_and_stops_when_there_is_none(at_once) -> None:
    queue = ScriptedQueue(10)
    everything = list(queue.left)
    sample = worked(queue, lambda address: LeaseWorker(address, "t", "me", at_once))
    assert sample.answers == 10
    assert sorted(queue.acked) == sorted(everything)
    assert sample.latency_ns.count == -(-10 // at_once)


def test_a_stream_s_records_are_acked_one_by_one_on_another_connection() -> None:
    queue = ScriptedQueue(50)
    everything = list(queue.left)
    sample = worked(queue, lambda address: StreamWorker(address, "t", "me"), 50)
    assert sample.answers == 50
    assert queue.acked == everything


@pytest.mark.parametrize(
    "worker", [lambda address: LeaseWorker(address, "t", "me", 1), lambda address: StreamWorker(address, "t", "me")]
)
def test_a_refused_ack_ends_the_measurement(worker) -> None:
    with pytest.raises(BenchError, match="409"):
        worked(ScriptedQueue(5, refuse_acks=True), worker, 5)


def test_a_refused_stream_ends_the_measurement() -> None:
    def refuse():
        return lambda data: b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

    with (
        scripted_server(refuse) as address,
        Pump([StreamWorker(address, "t", "me")]) as pump,
        pytest.raises(BenchError, match="404"),
    ):
        pump.run(30.0, 1)


def test_a_server_that_hangs_up_ends_the_measurement() -> None:
    with (
        scripted_server(lambda: lambda data: None) as address,
        Pump([LeaseWorker(address, "t", "me", 1)]) as pump,
        pytest.raises(BenchError, match=r"closed a connection|broke"),
    ):
        pump.run(30.0, 1)


def test_a_queue_is_given_what_its_time_needs_within_the_bound() -> None:
    assert records_needed(2.0, 1000, 10**9) == 2000
    assert records_needed(2.0, 1000, 500) == 500
    assert records_needed(0.0, 1000, 500) == 100
