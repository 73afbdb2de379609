"""What was answered is there after the broker was killed; and what bounds a broker's connections."""

from pathlib import Path

from penstock.testing.process import BrokerProcess
from tests.conformance.tinymq.client import Tinymq, request, told
from tests.support.waiting import eventually


def test_everything_acknowledged_survives_a_kill(own_broker: BrokerProcess) -> None:
    with Tinymq(own_broker.addresses["tcp"]) as client:
        client.data("createTopic", topic="orders", partitions=2)
        client.data("createTopic", topic="empty", partitions=3)
        client.send("".join(request("produce", topic="orders", value=str(n)) + "\n" for n in range(500)).encode())
        produced = [client.read()["data"] for _ in range(500)]
        client.data("commit", groupId="readers", topic="orders", partition=1, offset=7)
        client.data("joinGroup", groupId="readers", topic="orders", consumerId="a")
        own_broker.kill()
    own_broker.start()
    with Tinymq(own_broker.addresses["tcp"]) as client:
        assert client.data("listTopics") == {"topics": ["empty", "orders"]}
        assert client.data("createTopic", topic="empty", partitions=3) == {"topic": "empty", "partitions": 3}
        for partition in (0, 1):
            records = client.data("fetch", topic="orders", partition=partition, offset=0, max=1000)["records"]
            assert [{**record, "partition": partition} for record in records] == [
                record for record in produced if record["partition"] == partition
            ]
        metrics = client.data("metrics", topic="orders", partition=1, groupId="readers")
        assert metrics["committedOffset"] == 7
        # Membership is soft: it comes back by joining again, with the same partitions.
        assert "join again" in client.error("heartbeat", groupId="readers", consumerId="a")
        assert client.data("joinGroup", groupId="readers", topic="orders", consumerId="a") == {"partitions": [0, 1]}


def test_one_connection_too_many_is_told_so_and_closed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", {"limits.connections_max": 2}, tcp="127.0.0.1:0") as broker,
        Tinymq(broker.addresses["tcp"]) as first,
        Tinymq(broker.addresses["tcp"]) as second,
    ):
        assert first.data("listTopics") == second.data("listTopics") == {"topics": []}
        with Tinymq(broker.addresses["tcp"]) as third:
            assert told(third.read()).startswith("Too many connections: 2 are open")
            assert third.ended()
        first.close()

        def admitted() -> bool:
            with Tinymq(broker.addresses["tcp"]) as again:
                return bool(again.ask("listTopics")["ok"])

        eventually(admitted, what="room for one more")


def test_a_client_that_is_silent_for_too_long_is_closed(tmp_path: Path) -> None:
    settings = {"limits.connection_idle_ms_max": 1_000}
    with (
        BrokerProcess(tmp_path / "data", settings, tcp="127.0.0.1:0") as broker,
        Tinymq(broker.addresses["tcp"]) as client,
    ):
        assert client.ended()


def test_a_stop_ends_with_clients_connected(own_broker: BrokerProcess) -> None:
    with Tinymq(own_broker.addresses["tcp"]) as client:
        client.send(b'{"type": "listTopics"}\n{"type": "half a li')
        client.read()
        assert own_broker.stop() == 0
        assert client.ended()
