"""One connection: negotiation, pipelining, and what a peer may do to it."""

import socket
import struct
import threading

import pytest

from penstock.address import Address
from penstock.client.connection import Connection
from penstock.client.errors import CannotConnect, ConnectionLost, NotKafka, RequestTimeout, UnsupportedByBroker
from penstock.wire.kafka.api_versions_generated import ApiVersionsResponse, ApiVersionsResponseApiKey
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.create_topics_generated import CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.kafka.headers import decode_request_header, frame
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.scripted_broker import CLOSE, ScriptedBroker


def connect(port, **options):
    return Connection(Address("127.0.0.1", port), timeout_ms=options.pop("timeout_ms", 5_000), **options)


class RawPeer:
    """Takes one connection and answers each frame with the next of the given bytes; then it closes, or stays."""

    def __init__(self, *answers, stay=False) -> None:
        self._answers = answers
        self._stay = stay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.frames = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(5)
        self._listener.close()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            for answer in self._answers:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                self.frames.append(connection.recv(size, socket.MSG_WAITALL))
                connection.sendall(answer)
            if self._stay:
                self._done.wait(10)


def versions(spans, *, version, correlation_id):
    keys = [ApiVersionsResponseApiKey(int(key), low, high) for key, (low, high) in spans.items()]
    parts = API[ApiKey.API_VERSIONS].encode_response(ApiVersionsResponse(api_keys=keys), version)
    return b"".join(frame(correlation_id, 0, parts))


def test_nobody_listening_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CannotConnect, match='Is the broker running\\? Start a broker with "penstock serve"'):
        connect(port)


def test_an_unknown_host_is_told() -> None:
    with pytest.raises(CannotConnect, match=r"^Cannot find the host 'no-such-host\.invalid': check the name"):
        Connection(Address("no-such-host.invalid", 1))


def test_the_newest_version_that_both_know_is_used() -> None:
    spans = {ApiKey.METADATA: (0, 8), ApiKey.CREATE_TOPICS: (90, 99)}
    with RawPeer(versions(spans, version=3, correlation_id=1), stay=True) as peer:
        connection = connect(peer.port)
        assert connection.version_for(API[ApiKey.METADATA]) == 8
        assert connection.version_for(API[ApiKey.METADATA], 5) == 5
        with pytest.raises(UnsupportedByBroker, match="does not support Fetch"):
            connection.version_for(API[ApiKey.FETCH])
        with pytest.raises(UnsupportedByBroker, match="supports CreateTopics versions 90 to 99, this client 2 to 7"):
            connection.call(CreateTopicsRequest(), CreateTopicsResponse)
        connection.close()


def test_an_old_broker_that_refuses_the_first_try_is_asked_in_the_oldest_version() -> None:
    refusal = struct.pack(">iihi", 10, 1, 35, 0)
    with RawPeer(refusal, versions({ApiKey.METADATA: (0, 1)}, version=0, correlation_id=2)) as peer:
        connection = connect(peer.port)
        assert connection.version_for(API[ApiKey.METADATA]) == 1
        connection.close()
    asked = [decode_request_header(data)[0].api_version for data in peer.frames]
    assert asked == [3, 0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"\(it looks like HTTP\); use the kafka= address"),
        (b'{"ok":false}\n', r"\(it looks like JSON lines\); use the kafka= address"),
        (struct.pack(">i", -1), "A response of -1 bytes is not possible; use the kafka= address"),
        (struct.pack(">i", 3) + b"abc", "A response of 3 bytes"),
        (struct.pack(">iih", 6, 1, 0), "use the kafka= address"),
        (struct.pack(">ii", 4, 1), "The response ends before its error code"),
    ],
)
def test_a_peer_that_is_no_broker_is_told_and_left(answer, says) -> None:
    with RawPeer(answer) as peer, pytest.raises(NotKafka, match=f"does not speak the Kafka protocol.*{says}"):
        connect(peer.port)


@pytest.mark.parametrize("answer", [struct.pack(">i", 100) + b"short", b""])
def test_a_peer_that_goes_away_in_the_middle_is_lost(answer) -> None:
    with RawPeer(answer) as peer, pytest.raises(ConnectionLost, match="Lost the connection"):
        connect(peer.port)


def test_an_announced_size_takes_no_memory_before_bytes_come() -> None:
    answers = versions({ApiKey.METADATA: (0, 13)}, version=3, correlation_id=1), struct.pack(">i", 2**31 - 1) + b"x"
    with RawPeer(*answers) as peer:
        connection = connect(peer.port)
        with pytest.raises(ConnectionLost, match="Lost the connection"):
            connection.call(MetadataRequest(), MetadataResponse)


def test_no_answer_in_time_closes_the_connection() -> None:
    with ScriptedBroker({ApiKey.METADATA: lambda _: None}) as broker:
        connection = connect(broker.port)
        with pytest.raises(RequestTimeout, match="did not answer Metadata within 50 ms"):
            connection.call(MetadataRequest(), MetadataResponse, timeout_ms=50)
        assert not connection.is_open
        with pytest.raises(ConnectionLost, match="is closed"):
            connection.call(MetadataRequest(), MetadataResponse)


def test_a_connection_that_the_broker_closes_is_lost() -> None:
    with ScriptedBroker({ApiKey.METADATA: lambda _: CLOSE}) as broker:
        connection = connect(broker.port)
        with pytest.raises(ConnectionLost, match="The broker closed the connection"):
            connection.call(MetadataRequest(), MetadataResponse)
        assert not connection.is_open


def test_an_answer_to_another_request_is_refused() -> None:
    metadata = b"".join(frame(77, 1, API[ApiKey.METADATA].encode_response(MetadataResponse(), 13)))
    with RawPeer(versions({ApiKey.METADATA: (0, 13)}, version=3, correlation_id=1), metadata, stay=True) as peer:
        connection = connect(peer.port)
        with pytest.raises(ConnectionLost, match="Got response 77 instead of 2"):
            connection.call(MetadataRequest(), MetadataResponse)
        assert not connection.is_open


def test_requests_are_pipelined_and_answers_come_in_order() -> None:
    def echo(request):
        return MetadataResponse(cluster_id=request.topics[0].name)

    with ScriptedBroker({ApiKey.METADATA: echo}) as broker:
        connection = connect(broker.port)
        names = [f"t{number}" for number in range(100)]
        tickets = [connection.send(MetadataRequest(topics=[MetadataRequestTopic(name=name)])) for name in names]
        assert [connection.receive(ticket, MetadataResponse).cluster_id for ticket in tickets] == names
        connection.close()


def test_a_call_between_pipelined_requests_leaves_their_answers_to_them() -> None:
    def echo(request):
        return MetadataResponse(cluster_id=request.topics[0].name)

    def asking(name):
        return MetadataRequest(topics=[MetadataRequestTopic(name=name)])

    with ScriptedBroker({ApiKey.METADATA: echo}) as broker:
        connection = connect(broker.port)
        first, second = connection.send(asking("first")), connection.send(asking("second"))
        assert connection.call(asking("between"), MetadataResponse).cluster_id == "between"
        third = connection.send(asking("third"))
        found = [connection.receive(ticket, MetadataResponse).cluster_id for ticket in (first, third, second)]
        assert found == ["first", "third", "second"]
        connection.close()


def test_requests_on_their_way_are_lost_with_the_connection() -> None:
    answers = iter([MetadataResponse(), CLOSE])
    with ScriptedBroker({ApiKey.METADATA: lambda _: next(answers)}) as broker:
        connection = connect(broker.port)
        first, second, third = (connection.send(MetadataRequest()) for _ in range(3))
        with pytest.raises(ConnectionLost):
            connection.receive(third, MetadataResponse)
        assert connection.receive(first, MetadataResponse) == MetadataResponse()
        with pytest.raises(ConnectionLost):
            connection.receive(second, MetadataResponse)


def test_a_large_request_and_a_large_answer_pass_whole() -> None:
    big = "x" * 30_000

    def echo(request):
        return MetadataResponse(cluster_id=request.topics[-1].name, controller_id=len(request.topics))

    with ScriptedBroker({ApiKey.METADATA: echo}) as broker:
        connection = connect(broker.port)
        answer = connection.call(
            MetadataRequest(topics=[MetadataRequestTopic(name=big) for _ in range(300)]), MetadataResponse
        )
        assert (answer.cluster_id, answer.controller_id) == (big, 300)
        connection.close()
