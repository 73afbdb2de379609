"""HTTP to a broker: what goes wrong is told in this client's words, and a request is never sent twice by itself."""

import os
import re
import resource
import socket
import threading
from contextlib import ExitStack, closing, contextmanager

import msgspec
import pytest

from penstock.client import http as http_module
from penstock.client.errors import CannotConnect, ConnectionLost, RequestRefused, RequestTimeout
from penstock.client.http import HttpSession


class Said(msgspec.Struct):
    said: str


def receive(connection):
    """One request, with its body; nothing when the client is gone."""
    request = b""
    while b"\r\n\r\n" not in request:
        piece = connection.recv(65536)
        if not piece:
            return b""
        request += piece
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    size = request.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(request) < size:
        request += connection.recv(65536)
    return request


@contextmanager
def server(*answers, close_after=False):
    """Gives one answer for each request, in order; ``close_after`` closes the connection behind each of them."""
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            left = list(answers)
            while left:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while left:
                        request = receive(connection)
                        if not request:
                            break
                        requests.append(request)
                        connection.sendall(left.pop(0))
                        if close_after:
                            break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def answer(body, status="200 OK", extra=""):
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n{body}".encode()


def test_one_connection_serves_many_requests() -> None:
    with server(answer('{"said":"a"}'), answer('{"said":"b"}')) as (address, requests):
        connection = HttpSession(address)
        assert connection.get("/x", Said, {"a": 1, "b": None, "c": "ä b"}).said == "a"
        assert connection.post("/y", {"a": 1, "b": None}, Said).said == "b"
        connection.close()
    assert requests[0].startswith(b"GET /x?a=1&c=%C3%A4+b HTTP/1.1\r\n")
    assert requests[1].startswith(b"POST /y HTTP/1.1\r\n")
    assert requests[1].endswith(b'{"a":1}')


def test_a_process_of_more_files_than_select_can_tell_apart_uses_its_connection_again() -> None:
    said = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"said":"a"}'
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = 1100
    if hard != resource.RLIM_INFINITY and hard < many * 2:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many * 2), hard))
    with ExitStack() as files, server(said, said) as (address, requests):
        for _ in range(many):
            files.enter_context(open(os.devnull))
        with closing(HttpSession(address)) as http:
            assert [http.get("/", Said).said, http.get("/", Said).said] == ["a", "a"]
    assert len(requests) == 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_that_was_closed_while_nothing_was_asked_is_opened_anew() -> None:
    with server(answer('{"said":"a"}'), answer('{"said":"b"}'), close_after=True) as (address, _):
        connection = HttpSession(address)
        assert connection.get("/", Said).said == "a"
        # The end of the connection is there to be read, whenever it came.
        connection._connection.sock.recv(1, socket.MSG_PEEK)
        assert connection.get("/", Said).said == "b"
        connection.close()


def test_one_that_never_answered_may_be_no_http_at_all_and_one_that_did_is() -> None:
    with server(b"", close_after=True) as (address, _), pytest.raises(ConnectionLost, match=r"Kafka port.*http="):
        HttpSession(address).post_only("/", {})
    with server(answer('{"said":"a"}'), b"", close_after=True) as (address, _):
        connection = HttpSession(address)
        assert connection.get("/", Said).said == "a"
        connection.close()
        with pytest.raises(ConnectionLost, match=r"before it answered$"):
            connection.post_only("/", {})


def test_an_answer_that_does_not_come_is_not_asked_for_again() -> None:
    with server(b"", close_after=True) as (address, requests):
        with pytest.raises(ConnectionLost, match="closed the connection before it answered"):
            HttpSession(address).post_only("/", {})
        assert len(requests) == 1


def test_a_broker_that_does_not_answer_in_time() -> None:
    with server(b"", b"") as (address, _), pytest.raises(RequestTimeout, match="did not answer within 50 ms"):
        HttpSession(address, timeout_ms=50).get("/", Said)


def test_nobody_there_and_no_such_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CannotConnect, match=r"Is the broker running\?"):
        HttpSession(f"127.0.0.1:{port}").get("/", Said)
    with pytest.raises(CannotConnect, match="Cannot find the host"):
        HttpSession("no-such-host.invalid:80").get("/", Said)
    with pytest.raises(ValueError, match="has no port"):
        HttpSession("nowhere")


@pytest.mark.parametrize(
    "strange",
    [b"SSH-2.0-x\r\n", answer("not json"), answer('{"other":1}'), answer("<html>", "502 Bad Gateway")],
    ids=["another protocol", "not json", "another answer", "a proxy"],
)
def test_something_that_is_not_penstock_is_told_as_such(strange) -> None:
    with server(strange, close_after=True) as (address, _), pytest.raises(CannotConnect, match="use the http= address"):
        HttpSession(address).get("/", Said)


def test_refusals_in_the_shape_of_both_apis() -> None:
    full = '{"error":"RESOURCE_EXHAUSTED","message":"full.","reason":"partition_buffer_full","retry_after_ms":7}'
    with server(answer(full, "429 Too Many"), answer('{"error":"Topic not found"}', "404 Not Found")) as (address, _):
        connection = HttpSession(address)
        with pytest.raises(RequestRefused, match=r"^full \(RESOURCE_EXHAUSTED\)$") as refused:
            connection.post_only("/v1/produce", {})
        assert (refused.value.reason, refused.value.retry_after_ms) == ("partition_buffer_full", 7)
        with pytest.raises(RequestRefused, match="Topic not found") as refused:
            connection.get("/topics/x", Said)
        assert refused.value.is_not_found
        connection.close()


def test_the_lines_of_a_stream_come_one_by_one() -> None:
    stream = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"said":"a"}\n{"said":"b"}\n'
    with (
        server(stream, close_after=True) as (address, _),
        closing(HttpSession(address).stream("GET", "/", Said)) as lines,
    ):
        assert [line.said for line in lines] == ["a", "b"]


def test_a_stream_that_breaks_off_within_a_line_is_a_lost_connection() -> None:
    stream = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"said":"a"}\n{"sa'
    with server(stream, close_after=True) as (address, _):
        lines = HttpSession(address).stream("GET", "/", Said)
        assert next(lines).said == "a"
        with pytest.raises(ConnectionLost, match="in the middle of a line"):
            next(lines)


def test_a_stream_that_is_refused() -> None:
    gone = answer('{"error":"NOT_FOUND","message":"no"}', "404 Not Found")
    with server(gone) as (address, _), pytest.raises(RequestRefused):
        next(HttpSession(address).stream("GET", "/", Said))


def test_what_another_protocol_answers_is_shown_without_its_control_characters() -> None:
    with (
        server(b"\x00\x00\x12\x04\x1b[31m\x00\r\n", close_after=True) as (address, _),
        closing(HttpSession(address)) as http,
        pytest.raises(CannotConnect, match="use the http= address") as raised,
    ):
        http.get("/", Said)
    assert str(raised.value).isprintable()


def test_an_address_may_be_a_url() -> None:
    assert str(HttpSession("http://127.0.0.1:8080/").address) == "127.0.0.1:8080"


def test_of_several_nodes_the_first_that_takes_a_connection_is_asked_and_the_next_one_when_it_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    with server(answer('{"said":"second"}')) as (second, _), server(answer('{"said":"third"}')) as (third, _):
        with closing(HttpSession(f"{nobody}, http://{second}/,{third}")) as http:
            assert http.get("/", Said).said == "second"
            assert str(http.address) == second
            http.close()
        with closing(HttpSession(f"{nobody},{third}")) as http:
            assert http.get("/", Said).said == "third"


@pytest.mark.parametrize("hangs", [False, True])
def test_what_one_of_several_nodes_does_not_answer_the_next_is_asked_and_stays_the_one_that_is(
    hangs, monkeypatch
) -> None:
    silent = () if hangs else (b"",)
    with (
        server(*silent, close_after=True) as (first, _),
        server(answer('{"said":"b"}'), answer('{"said":"c"}')) as (second, requests),
        closing(HttpSession(f"{first},{second}")) as connection,
    ):
        with monkeypatch.context() as patched:
            # The last node that is asked has all the time.
            patched.setattr(http_module, "ANSWER_TIMEOUT_MS_WITH_OTHERS", 50)
            assert connection.get("/", Said).said == "b"
        assert str(connection.address) == second
        connection.close()
        assert connection.get("/", Said).said == "c"
        assert len(requests) == 2


def test_what_changes_something_is_asked_of_one_node_and_the_next_request_goes_to_another() -> None:
    with (
        server(b"", close_after=True) as (first, asked),
        server(answer("{}")) as (second, requests),
        closing(HttpSession(f"{first},{second}")) as connection,
    ):
        with pytest.raises(ConnectionLost, match=first):
            connection.post_only("/", {})
        assert (len(asked), len(requests)) == (1, 0)
        connection.post_only("/", {})
        assert (len(asked), len(requests)) == (1, 1)


def test_when_no_node_answers_the_last_one_is_told_of() -> None:
    with (
        server() as (first, _),
        server() as (second, _),
        closing(HttpSession(f"{first},{second}", timeout_ms=50)) as connection,
        pytest.raises(RequestTimeout, match=f"{second} did not answer within 50 ms"),
    ):
        connection.get("/", Said)


def test_when_none_of_several_nodes_is_there_all_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(CannotConnect, match=f"Cannot connect to any of {nobody}, {nobody}: .* --http"):
        HttpSession(f"{nobody},{nobody}").connect()


@pytest.mark.parametrize("text", ["", " , ", "127.0.0.1:1,x"])
def test_a_list_that_names_nobody_or_not_everybody_is_refused(text) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        HttpSession(text)
