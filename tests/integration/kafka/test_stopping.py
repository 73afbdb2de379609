"""SIGTERM while requests are under way: they are answered, the process ends with 0, and what was acknowledged is there."""

import signal
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.integration.kafka.conftest import make_topic
from tests.support.kafka_wire import FETCH, PRODUCE, RawClient, batch, encode, fetch, fetched, opened, produce, produced


@pytest.mark.parametrize("flush", ["sync", "os"])
def test_a_stop_answers_writers_and_readers_that_wait(tmp_path: Path, flush: str) -> None:
    settings = {"log.flush": flush, "groups.offsets_topic_partitions": 1}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        topic = make_topic(broker.bootstrap, 2)
        with RawClient(broker.bootstrap) as writer, RawClient(broker.bootstrap) as reader:
            count = 500
            reader.send(FETCH, fetch(topic, 0, partition=1, max_wait_ms=60_000), 12)
            # The reader waits by the time its neighbour was served.
            writer.ask(PRODUCE, produce(topic, batch(b"first")), 9)
            writer.socket.sendall(
                b"".join(encode(PRODUCE, produce(topic, batch(b"%d" % n)), 9, n) for n in range(count))
            )
            acknowledged = 1
            broker.signal(signal.SIGTERM)
            assert fetched(reader.answer(FETCH, 12)[1]).error_code == 0
            assert reader.closed_by_peer()
            try:
                for n in range(count):
                    correlation_id, response = writer.answer(PRODUCE, 9)
                    assert (correlation_id, produced(response).error_code) == (n, 0)
                    assert produced(response).base_offset == n + 1
                    acknowledged += 1
            except EOFError:
                pass
        assert broker.wait() == 0
        assert "Traceback" not in broker.log_text()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            answer = fetched(client.ask(FETCH, fetch(topic, 0), 12))
            assert len(opened(answer.records)) >= acknowledged
            assert "cut" not in broker.log_text()
