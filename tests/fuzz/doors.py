"""For each door: what a stranger says before the login, with mistakes, and at last a request that it must not make.

A conversation is a coroutine: it writes, may read an answer and use it, and returns how many mutated messages it sent. Passwords and tokens
are well formed but wrong, so that no mistake makes them right.
"""

import base64
import json
import random
import ssl
import struct
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol

from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest
from penstock.wire.mq import mq_generated as mq
from tests.fuzz import http2
from tests.fuzz.mutations import mutated
from tests.support.kafka_wire import create, encode
from tests.support.tokens import Provider

INTRUDER = "intruder"
"""A topic that nobody may create."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
STEPPED = ("SCRAM-SHA-256", "SCRAM-SHA-512")
NONCE = "rOprNGfwEbeRWgbNEkqO"
WRONG_KEY = "pk_0123456789abcdef_" + "A" * 43
COSTLY = 0.05
"""The share of passwords in plain text: a check takes milliseconds, which would leave little time for other messages."""


class Stranger(Protocol):
    """A connection."""

    def write(self, data: bytes) -> None:
        """Send."""

    def answer(self) -> Awaitable[bytes]:
        """What the broker has sent since the last answer; empty if it closed the connection."""
        ...


Conversation = Callable[[random.Random, Stranger], Awaitable[int]]


def user(rng: random.Random) -> str:
    """Mostly unknown and different, since failures of one user delay its next login."""
    return "admin" if rng.random() < 0.001 else f"user{rng.randrange(1_000_000)}"


@cache
def foreign_tokens() -> tuple[str, ...]:
    """Of an issuer that nobody trusts, with the keys of no provider."""
    provider = Provider(number=1)
    return tuple(provider.token(algorithm) for algorithm in provider.keys)


# Kafka.


def _sasl(mechanism: str, rng: random.Random) -> bytes:
    if mechanism == "PLAIN":
        return f"\0{user(rng)}\0wrong".encode()
    if mechanism == "OAUTHBEARER":
        return b"n,,\x01auth=Bearer " + rng.choice(foreign_tokens()).encode() + b"\x01\x01"
    return f"n,,n={user(rng)},r={NONCE}{rng.randrange(1000)}".encode()


def _mechanism(rng: random.Random) -> str:
    return "PLAIN" if rng.random() < COSTLY else rng.choice(MECHANISMS[1:])


def _reframed(rng: random.Random, data: bytes) -> bytes:
    """A mutated frame; in most, the length is right, so that the mistakes are further inside."""
    if rng.random() < 0.2:
        return mutated(rng, data)
    body = mutated(rng, data[4:])
    return struct.pack(">i", len(body)) + body


async def kafka(rng: random.Random, stranger: Stranger) -> int:
    """Versions, handshake and tokens."""
    first = encode(ApiKey.API_VERSIONS, ApiVersionsRequest("fuzz", "1"), rng.randint(0, 4))
    mechanism = _mechanism(rng)
    handshake = encode(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), 1)
    intrusion = encode(ApiKey.CREATE_TOPICS, create(INTRUDER), 5)
    kind = rng.randrange(6)
    if kind == 0:
        stranger.write(_reframed(rng, first) + intrusion)
    elif kind == 1:
        stranger.write(first + _reframed(rng, handshake) + intrusion)
    elif kind == 2:
        token = mutated(rng, _sasl(mechanism, rng))
        stranger.write(handshake + _authenticate(token, rng) + intrusion)
    elif kind == 3:
        stranger.write(first + handshake + _reframed(rng, _authenticate(_sasl(mechanism, rng), rng)) + intrusion)
    elif kind == 4:
        raw = mutated(rng, _sasl(mechanism, rng))
        old = encode(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), 0)
        stranger.write(old + struct.pack(">i", len(raw)) + raw + intrusion)
    else:
        await _scram(rng, stranger)
        stranger.write(intrusion)
    return 1


def _authenticate(token: bytes, rng: random.Random) -> bytes:
    return encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(token), rng.randint(0, 2))


async def _scram(rng: random.Random, stranger: Stranger) -> None:
    """The first step as it should be, and the second with the broker's nonce, a wrong proof and mistakes."""
    mechanism = rng.choice(STEPPED)
    stranger.write(encode(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), 1))
    stranger.write(encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(_sasl(mechanism, rng)), 1))
    told = b""
    while b",s=" not in told and (more := await stranger.answer()):
        told += more
    nonce = told.partition(b"r=")[2].partition(b",")[0]
    proof = base64.b64encode(rng.randbytes(32 if mechanism.endswith("256") else 64))
    final = b"c=biws,r=" + nonce + b",p=" + proof
    stranger.write(encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(mutated(rng, final)), 1))


# HTTP.


def _credential(rng: random.Random) -> str:
    if rng.random() < COSTLY:
        return "Basic " + base64.b64encode(f"{user(rng)}:wrong".encode()).decode()
    return "Bearer " + rng.choice((*foreign_tokens(), WRONG_KEY, WRONG_KEY))


_PATHS = (
    *("GET /v1/topics", "POST /v1/topics", "DELETE /v1/topics/kept", "GET /topics", "POST /topics", "GET /metrics"),
    *("POST /v1/produce", "POST /topics/kept/messages", "GET /v1/users", "PUT /v1/quotas", "GET /livez", "GET /docs"),
)


def _request(rng: random.Random, *, guarded: bool = True) -> bytes:
    method, _, path = rng.choice(_PATHS).partition(" ")
    body = json.dumps({"name": INTRUDER, "topic": "kept", "value": "x"}).encode() if method == "POST" else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    if guarded:
        head += f"Authorization: {_credential(rng)}\r\n"
    return head.encode() + b"\r\n" + body


async def http(rng: random.Random, stranger: Stranger) -> int:
    """Requests with a credential or without, one or some after each other."""
    count = rng.randint(1, 3)
    stranger.write(b"".join(mutated(rng, _request(rng, guarded=rng.random() < 0.5)) for _ in range(count)))
    return count


# JSON lines.


def _line(rng: random.Random) -> bytes:
    if rng.random() < COSTLY:
        return json.dumps({"type": "auth", "user": user(rng), "password": "wrong"}).encode()
    if rng.random() < 0.2:
        return json.dumps({"type": "createTopic", "topic": INTRUDER, "partitions": 1}).encode()
    return json.dumps({"type": "auth", "token": rng.choice((*foreign_tokens(), WRONG_KEY, WRONG_KEY))}).encode()


async def tcp(rng: random.Random, stranger: Stranger) -> int:
    """The third failure closes the connection."""
    lines = [mutated(rng, _line(rng)) + (b"\n" if rng.random() < 0.95 else b"") for _ in range(rng.randint(1, 3))]
    stranger.write(b"".join(lines) + b'{"type":"createTopic","topic":"intruder"}\n')
    return len(lines)


# gRPC.


def _enclosed(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        return mutated(rng, data)
    payload = mutated(rng, data[9:])
    return len(payload).to_bytes(3, "big") + data[3:9] + payload


async def grpc(rng: random.Random, stranger: Stranger) -> int:
    """HTTP/2 frames, of which some or all have mistakes."""
    message = mq.CreateTopicRequest(name=INTRUDER).SerializeToString()
    authorization = _credential(rng).encode() if rng.random() < 0.7 else None
    frames = http2.opening() + http2.call(
        1, rng.choice(("CreateTopic", "ListTopics", "Publish")), message, authorization
    )
    frames += [http2.ping(), *http2.call(3, "CreateTopic", message, None)]
    chosen = {rng.randrange(len(frames)) for _ in range(rng.randint(1, 3))}
    preface = mutated(rng, http2.PREFACE) if rng.random() < 0.05 else http2.PREFACE
    stranger.write(preface + b"".join(_enclosed(rng, each) if at in chosen else each for at, each in enumerate(frames)))
    return len(chosen)


# TLS.


@cache
def client_hellos() -> tuple[bytes, ...]:
    """As OpenSSL makes them."""
    found = []
    for name in (None, "localhost", "x" * 60 + ".example.com"):
        for protocols in ([], ["http/1.1"], ["h2"]):
            for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.maximum_version = newest
                if protocols:
                    context.set_alpn_protocols(protocols)
                outgoing = ssl.MemoryBIO()
                session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
                try:
                    session.do_handshake()
                except ssl.SSLWantReadError:
                    found.append(outgoing.read())
    return tuple(found)


async def hello(rng: random.Random, stranger: Stranger) -> int:
    """A handshake that begins with mistakes."""
    whole = rng.choice(client_hellos())
    if rng.random() < 0.3:
        stranger.write(mutated(rng, whole))
    else:
        inner = mutated(rng, whole[9:])
        handshake = whole[5:6] + len(inner).to_bytes(3, "big") + inner
        stranger.write(whole[:3] + (len(handshake) & 0xFFFF).to_bytes(2, "big") + handshake)
    return 1


# Nodes.


def _peer_frame(message: Any) -> bytes:
    return encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(json.dumps(message).encode()), 2)


def _number(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(16)).decode()


async def peer(rng: random.Random, stranger: Stranger) -> int:
    """A greeting with mistakes, or a right one and a proof with mistakes."""
    greeting = {"node": 2, "epoch": 1, "to_node": 1, "nonce": _number(rng), "generation": rng.randint(0, 2)}
    intrusion = struct.pack(">ihhih", 12, 30_010, 0, 1, -1) + bytes(2)
    if rng.random() < 0.5:
        if rng.random() < 0.5:
            stranger.write(_reframed(rng, _peer_frame(greeting)) + intrusion)
        else:
            inner = mutated(rng, json.dumps(greeting).encode())
            stranger.write(encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(inner), 2) + intrusion)
        return 1
    stranger.write(_peer_frame(greeting))
    await stranger.answer()
    proof = {"proof": base64.b64encode(rng.randbytes(32)).decode()}
    if rng.random() < 0.5:
        stranger.write(_reframed(rng, _peer_frame(proof)) + intrusion)
    else:
        inner = mutated(rng, json.dumps(proof).encode())
        stranger.write(encode(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(inner), 2) + intrusion)
    return 1
