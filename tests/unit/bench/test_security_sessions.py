"""Connections whose requests are measured, and the systems that they lead to."""

import os
import socket
import threading
import time

import pytest

from bench.peers.base import Flush
from bench.peers.penstock import PenstockWithGateways
from bench.security.sessions import HttpCounter, SocketSession, cpu_s_of
from bench.security.systems import OTHER_RULES, SEALED, TLS, TOPICS, SecuredKafka, SecuredPenstock, other_rules
from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.pump import RingSource
from penstock.operations.access import Pattern

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
READY = b"penstock ready kafka=127.0.0.1:1 http=127.0.0.1:2 tcp=off grpc=127.0.0.1:4"


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_the_cpu_time_of_a_process_includes_all_its_threads_and_has_fine_steps() -> None:
    def work() -> None:
        sum(range(200_000))

    before = cpu_s_of(os.getpid())
    thread_before = time.thread_time()
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    own = time.thread_time() - thread_before
    used = cpu_s_of(os.getpid()) - before
    assert used > own
    # Hundredths of a second, as in /proc, could not show that.
    assert round(used, 2) != used


def test_the_cpu_time_of_a_process_that_has_ended_is_an_error() -> None:
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)
    with pytest.raises(BenchError, match="cannot be read"):
        cpu_s_of(pid)


def test_a_session_sends_its_window_at_once_and_waits_for_all_responses(pair) -> None:
    ours, theirs = pair
    session = SocketSession(ours, RingSource([b"a", b"b", b"c"]), HttpCounter(), window=3)
    # The responses are there in pieces of which none ends where a response does.
    theirs.sendall(OK + OK[:10])
    theirs.sendall(OK[10:] + OK)
    assert session.exchange() == 3
    assert theirs.recv(100) == b"abc"


def test_a_session_with_too_many_responses_fails(pair) -> None:
    ours, theirs = pair
    theirs.sendall(OK + OK)
    with pytest.raises(BenchError, match="more responses than it got requests"):
        SocketSession(ours, RingSource([b"a"]), HttpCounter()).exchange()


def test_a_session_fails_if_the_server_closes_the_connection(pair) -> None:
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(BenchError, match="closed a connection"):
        SocketSession(ours, RingSource([b"a"]), HttpCounter()).exchange()


@pytest.mark.parametrize("words", [b"", b" tls=kafka,http,grpc", b" insecure=yes"])
def test_the_listeners_are_read_from_a_ready_line_that_says_more(tmp_path, words) -> None:
    peer = PenstockWithGateways(tmp_path, Flush.OS)
    peer.log_path.write_bytes(READY + words + b"\n")
    found = peer.endpoints()
    assert (found.kafka, found.http, found.tcp, found.grpc) == (
        Address("127.0.0.1", 1),
        Address("127.0.0.1", 2),
        None,
        Address("127.0.0.1", 4),
    )


def test_a_broker_has_only_the_parts_of_security_that_it_is_measured_with(tmp_path) -> None:
    _, with_tls = SecuredPenstock(tmp_path / "tls", TLS).command()
    _, sealed = SecuredPenstock(tmp_path / "sealed", SEALED).command()
    assert "PENSTOCK__TLS__CERT_FILE" in with_tls
    assert with_tls["PENSTOCK__SECURITY__AUTHENTICATION"] == "required"
    assert "PENSTOCK__ENCRYPTION__KEY_FILE" not in with_tls
    assert "PENSTOCK__ENCRYPTION__KEY_FILE" in sealed
    assert not [name for name in sealed if "__TLS__" in name or "__SECURITY__" in name]


def test_other_rules_cover_no_topic_of_the_benchmark_and_many_are_about_its_user() -> None:
    rules = other_rules(OTHER_RULES)
    assert len(set(rules)) == OTHER_RULES
    assert not [rule for rule in rules if rule.name.startswith(TOPICS) or TOPICS.startswith(rule.name)]
    for principal in ("User:bench", "User:other-"):
        ours = [rule for rule in rules if rule.principal.startswith(principal)]
        assert len(ours) == OTHER_RULES // 2
        assert {rule.pattern for rule in ours} == set(Pattern)


def test_kafka_gets_a_second_listener_with_a_certificate(tmp_path) -> None:
    peer = SecuredKafka(tmp_path)
    settings = peer.settings()
    assert settings["advertised.listeners"] == f"PLAINTEXT://{peer.address},SSL://{peer.tls_address}"
    assert settings["ssl.keystore.location"] == str(tmp_path / "keystore.pem")
