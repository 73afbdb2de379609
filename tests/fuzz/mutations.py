"""Mutations of valid messages: bits, bytes, lengths, pieces cut out, doubled and moved; every choice comes from the seed."""

import random
import struct

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TEXTS = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"=",
    b",",
    b"{",
    b"[" * 40,
    b'"',
    b"\\u0000",
    b"%00",
    b"\xff\xfe",
    b"\xc3",
    b"1e999",
)
ADDED_BYTES_MAX = 64
LONG_BYTES_MAX = 100_000
MUTATIONS_MAX = 4


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same with one to four mistakes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, MUTATIONS_MAX)):
        rng.choice(_MUTATIONS)(rng, out)
    return bytes(out)


def _flip(rng: random.Random, out: bytearray) -> None:
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, out: bytearray) -> None:
    if out:
        out[rng.randrange(len(out))] = rng.choice(INTERESTING) & 0xFF


def _number(rng: random.Random, out: bytearray) -> None:
    form, size = rng.choice(((">H", 2), (">I", 4)))
    if len(out) >= size:
        struct.pack_into(form, out, rng.randrange(len(out) - size + 1), rng.choice(INTERESTING) & (1 << 8 * size) - 1)


def _insert(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = rng.choice(TEXTS) if rng.random() < 0.5 else rng.randbytes(rng.randint(1, ADDED_BYTES_MAX))


def _cut(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    del out[at : at + rng.randint(1, ADDED_BYTES_MAX)]


def _end(rng: random.Random, out: bytearray) -> None:
    del out[rng.randrange(len(out) + 1) :]


def _double(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    piece = out[at : at + rng.randint(1, ADDED_BYTES_MAX)]
    to = rng.randrange(len(out) + 1)
    out[to:to] = piece


def _lengthen(rng: random.Random, out: bytearray) -> None:
    if rng.random() < 0.02:
        at = rng.randrange(len(out) + 1)
        out[at:at] = rng.choice((b"a", b"\0", b"\xff", b"[", b" ")) * rng.randint(1, LONG_BYTES_MAX)


_MUTATIONS = (_flip, _flip, _set, _number, _number, _insert, _cut, _end, _double, _lengthen)
