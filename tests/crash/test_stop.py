"""Being asked to stop: what is under way is answered, and the process ends with 0. And one owner for a data directory."""

import signal

import confluent_kafka
import pytest

from penstock.testing.process import BrokerProcess
from tests.support.clients import CONSUMERS, PRODUCERS, Record


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_keeps_every_answer_it_gave(start_broker, number) -> None:
    broker = start_broker()
    topic = "stopped"
    PRODUCERS["confluent"](broker.bootstrap, topic, [Record(b"first")])
    outcomes: list[bool] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.timeout.ms": 5000, "log_level": 0}
    )
    for n in range(500):
        producer.produce(topic, b"%d" % n, partition=0, on_delivery=lambda error, _: outcomes.append(error is None))
        producer.poll(0)
        if n == 250:
            broker.signal(number)
    code = broker.wait()
    producer.flush(10)
    assert code == 0, broker.log_text()
    assert "Traceback" not in broker.log_text()

    broker.start()
    assert len(CONSUMERS["confluent"](broker.bootstrap, topic, 1 + sum(outcomes))) == 1 + sum(outcomes)


def test_a_stop_does_not_wait_for_readers_that_wait(start_broker) -> None:
    broker = start_broker()
    PRODUCERS["confluent"](broker.bootstrap, "t", [Record(b"v")])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 90_000,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    message = consumer.poll(20)
    assert message is not None
    consumer.poll(0.5)
    # The reader would wait for a minute; the default bound on waiting for the process is half of that.
    assert broker.stop() == 0
    # A member that closes says good-bye, and waits for an answer.
    broker.start()
    consumer.close()


def test_a_clean_stop_needs_no_recovery(start_broker) -> None:
    broker = start_broker()
    PRODUCERS["confluent"](broker.bootstrap, "t", [Record(b"%d" % n) for n in range(100)])
    assert broker.stop() == 0
    broker.start()
    assert "cut" not in broker.log_text()
    assert len(CONSUMERS["confluent"](broker.bootstrap, "t", 100)) == 100


def test_a_second_process_on_the_same_data_directory_is_refused(start_broker) -> None:
    broker = start_broker()
    second = BrokerProcess(broker.data_dir)
    second.log_file = broker.data_dir.with_name("second.stderr")
    with pytest.raises(RuntimeError, match=r"exit code [1-9]"):
        second.start()
    said = second.log_text()
    assert "Traceback" not in said
    assert str(broker.data_dir) in said
    PRODUCERS["confluent"](broker.bootstrap, "t", [Record(b"the first one goes on")])


def test_the_lock_of_a_killed_process_is_no_obstacle(start_broker) -> None:
    broker = start_broker()
    broker.kill()
    broker.start()
    PRODUCERS["confluent"](broker.bootstrap, "t", [Record(b"v")])
