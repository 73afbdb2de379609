"""Finding brokers, and trying again."""

import socket
import threading

import pytest

from penstock.address import Address
from penstock.client import Admin, BrokerRefused, CannotConnect, Cluster, GroupAdmin, NotKafka, RequestTimeout
from penstock.client import cluster as cluster_module
from penstock.client import connection as connection_module
from penstock.client.cluster import parse_bootstrap
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import CreateTopicsResponse, CreateTopicsResponseTopic
from penstock.wire.kafka.list_groups_generated import ListGroupsResponse, ListGroupsResponseGroup
from penstock.wire.kafka.metadata_generated import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from tests.support.scripted_broker import CLOSE, ScriptedBroker


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_bootstrap_list_is_read() -> None:
    assert parse_bootstrap("a:1, b, [::1]:3,") == [Address("a", 1), Address("b", 9092), Address("::1", 3)]


@pytest.mark.parametrize("text", ["", " , ", "a:0", "a:b"])
def test_a_bootstrap_list_that_cannot_be_is_refused(text) -> None:
    with pytest.raises(ValueError):
        parse_bootstrap(text)


def test_the_next_bootstrap_server_is_tried(scripted) -> None:
    broker = scripted({})
    with Cluster(f"127.0.0.1:{closed_port()},{broker.bootstrap}") as cluster:
        assert list(cluster.describe(["t"]).topics) == ["t"]


def test_a_node_that_accepts_and_does_not_answer_is_left_for_the_next(scripted, monkeypatch) -> None:
    broker = scripted({})
    connect = Cluster.open_connection

    def open_connection(cluster, address):
        # A short wait for the silent node alone: a busy machine may need longer for the one that answers.
        monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_MS", 10_000 if address.port == broker.port else 50)
        return connect(cluster, address)

    monkeypatch.setattr(Cluster, "open_connection", open_connection)
    with socket.create_server(("127.0.0.1", 0)) as stands_still:
        silent = f"127.0.0.1:{stands_still.getsockname()[1]}"
        with Cluster(f"{silent},{broker.bootstrap}") as cluster:
            assert list(cluster.describe(["t"]).topics) == ["t"]
        with Cluster(silent) as cluster, pytest.raises(CannotConnect, match="did not answer ApiVersions within 50 ms"):
            cluster.describe()


def test_a_port_that_speaks_http_is_told_at_once_and_not_asked_again() -> None:
    asked = []

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Cluster(address) as cluster, pytest.raises(NotKafka, match=f"^{address} does not speak"):
            cluster.describe()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert len(asked) == 1


def test_no_broker_at_all_is_told_at_once_with_every_address() -> None:
    one, two = f"127.0.0.1:{closed_port()}", f"127.0.0.1:{closed_port()}"
    with (
        Cluster(f"{one},{two}") as cluster,
        pytest.raises(CannotConnect, match=f"Cannot connect to any of {one}, {two}: .* --bootstrap"),
    ):
        cluster.describe()
    with Cluster(one) as cluster, pytest.raises(CannotConnect, match=f"Cannot connect to {one}\\. "):
        cluster.describe()


def test_an_unknown_topic_is_told_at_once(scripted) -> None:
    asked = []

    def metadata(request):
        asked.append(request)
        return MetadataResponse(topics=[MetadataResponseTopic(error_code=3, name="u")])

    with (
        Cluster(scripted({ApiKey.METADATA: metadata}).bootstrap) as cluster,
        pytest.raises(BrokerRefused, match="topic 'u': there is no such topic"),
    ):
        cluster.topic("u")
    assert len(asked) == 1


def test_a_topic_that_is_being_made_is_waited_for(scripted) -> None:
    codes = [3, 5, 0]

    def metadata(_):
        return MetadataResponse(topics=[MetadataResponseTopic(error_code=codes.pop(0), name="u")])

    with Cluster(scripted({ApiKey.METADATA: metadata}).bootstrap, timeout_ms=10_000) as cluster:
        assert cluster.topic("u", auto_create=True).name == "u"
    assert codes == []


def test_a_lost_connection_is_opened_again(scripted) -> None:
    fates = [CLOSE, CLOSE, MetadataResponse(cluster_id="c")]
    with Cluster(scripted({ApiKey.METADATA: lambda _: fates.pop(0)}).bootstrap) as cluster:
        assert cluster.describe().cluster_id == "c"


def test_a_connection_lost_again_and_again_ends_as_a_timeout(scripted, pauses) -> None:
    with (
        Cluster(scripted({ApiKey.METADATA: lambda _: CLOSE}).bootstrap, timeout_ms=10_000) as cluster,
        pytest.raises(RequestTimeout, match="Gave up after several attempts: Lost the connection"),
    ):
        cluster.describe()
    assert 8 < sum(pauses) <= 10


def test_what_must_not_happen_twice_is_not_sent_twice(scripted) -> None:
    broker = scripted({ApiKey.CREATE_TOPICS: lambda _: CLOSE})
    with Cluster(broker.bootstrap) as cluster, pytest.raises(Exception, match="Lost the connection"):
        Admin(cluster).create_topic("new")
    assert len(broker.requests_of(ApiKey.CREATE_TOPICS)) == 1


def test_a_change_that_may_have_been_made_is_not_asked_for_again(scripted) -> None:
    why = "etcd cannot be reached. Whether the change was made is not known"
    broker = scripted(
        {
            ApiKey.CREATE_TOPICS: lambda _: CreateTopicsResponse(
                topics=[CreateTopicsResponseTopic(name="new", error_code=7, error_message=why)]
            )
        }
    )
    with Cluster(broker.bootstrap) as cluster, pytest.raises(BrokerRefused, match="is not known"):
        Admin(cluster).create_topic("new")
    assert len(broker.requests_of(ApiKey.CREATE_TOPICS)) == 1


def test_a_controller_that_moved_is_asked_for_again(scripted) -> None:
    codes = [41, 0]
    broker = scripted(
        {
            ApiKey.CREATE_TOPICS: lambda _: CreateTopicsResponse(
                topics=[CreateTopicsResponseTopic(name="new", error_code=codes.pop(0))]
            )
        }
    )
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("new")
    assert codes == []


def test_a_broker_that_comes_back_is_found_again(scripted, monkeypatch) -> None:
    broker = scripted({})
    again = ScriptedBroker(broker.handlers)

    pauses = []

    def come_back(pause_s) -> None:
        # Called where the client would pause: first when the connection is lost, then when it is refused.
        pauses.append(pause_s)
        if len(pauses) == 3:
            again.listen(broker.port)

    monkeypatch.setattr(cluster_module, "sleep", come_back)
    with Cluster(broker.bootstrap, timeout_ms=10_000) as cluster:
        cluster.describe(["t"])
        broker.close()
        try:
            assert list(cluster.describe(["t"]).topics) == ["t"]
        finally:
            again.close()
    assert len(pauses) == 3


def test_a_broker_that_stays_away_is_told_when_the_time_is_over(scripted, pauses) -> None:
    broker = scripted({})
    with Cluster(broker.bootstrap, timeout_ms=10_000) as cluster:
        cluster.describe(["t"])
        broker.close()
        with pytest.raises(CannotConnect):
            cluster.describe(["t"])
    assert 8 < sum(pauses) <= 10


def test_a_partition_without_a_leader_is_told(scripted) -> None:
    with Cluster(scripted({}, partitions=2).bootstrap) as cluster:
        assert cluster.by_leader([("t", 0), ("t", 1)]) == {
            cluster.leader_address("t", 0): [("t", 0), ("t", 1)],
        }
        with pytest.raises(BrokerRefused, match="has partitions 0 to 1"):
            cluster.leader_address("t", 2)


def brokers(*ports, controller):
    named = [MetadataResponseBroker(node, "127.0.0.1", port) for node, port in enumerate(ports, 1)]
    return MetadataResponse(brokers=named, controller_id=controller)


def test_a_controller_that_has_died_is_asked_for_anew() -> None:
    gone = closed_port()
    told = iter([2, 2, 1])
    with ScriptedBroker({}) as broker:
        broker.handlers[ApiKey.METADATA] = lambda _: brokers(broker.port, gone, controller=next(told))
        with Cluster(broker.bootstrap, timeout_ms=10_000) as cluster:
            assert cluster.retry(cluster.controller).address.port == broker.port


def test_groups_are_those_of_the_nodes_that_are_there() -> None:
    gone = closed_port()
    groups = ListGroupsResponse(groups=[ListGroupsResponseGroup(group_id="g")])
    with ScriptedBroker({ApiKey.LIST_GROUPS: lambda _: groups}) as broker:
        # The dead one is named at first.
        told = iter([(broker.port, gone), (broker.port,)])
        broker.handlers[ApiKey.METADATA] = lambda _: brokers(*next(told), controller=1)
        with Cluster(broker.bootstrap, timeout_ms=10_000) as cluster:
            assert [group.group_id for group in GroupAdmin(cluster).groups()] == ["g"]
