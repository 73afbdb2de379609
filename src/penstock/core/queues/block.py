"""The state of 128 offsets of a queue, as columns of numbers: about twenty bytes per record.

A record is untouched until it is first delivered or finished. ``attempts`` counts deliveries. ``until_ms`` is the end of a lease, the
end of a wait, or the deadline after which a ready record is finished without delivery (0 for none). The owner is the worker that has
the lease or had it last. Each string is stored once per block; columns have its index, where 0 is none.

Invariant: ``due_ms`` is at or before the earliest ``until_ms`` that matters, so a timer at ``due_ms`` misses nothing.
"""

import sys
from array import array
from enum import IntEnum
from struct import Struct
from typing import Final

from penstock.core.coordinators.topic import UnreadableRecord
from penstock.types import Buffer

BLOCK_BITS: Final = 7
BLOCK_OFFSETS: Final = 1 << BLOCK_BITS
BLOCK_MASK: Final = BLOCK_OFFSETS - 1
ATTEMPTS_MAX: Final = 0xFFFF
"""The counter of a record that is delivered more often stays at this number."""
NEVER_MS: Final = 1 << 62

ACK_TIMEOUT: Final = "ack_timeout"
"""The error of a record whose lease ended because it was not acked in time."""
OWNER_DISCONNECTED: Final = "owner_disconnected"
"""The error of a record whose lease ended with its worker's connection."""

_NAMES_MAX: Final = 255
_ERROR_CHARS_MAX: Final = 4 * 1024
"""Of all errors in a block; further errors are cut, so that a million records with an error each stay small."""
_ERROR_CHARS_CUT: Final = 32
_LOOK_THROUGH: Final = 32
"""After this many errors, those that are no longer used are removed."""

assert BLOCK_OFFSETS + _LOOK_THROUGH < _NAMES_MAX, "a block has an owner and an error for each record"


class State(IntEnum):
    """The state of a record, as a number of the state column."""

    UNTOUCHED = 0
    FINISHED = 1
    LEASED = 2
    WAITING = 3
    READY = 4
    MOVING = 5


# Plain numbers, because the columns are read for every record.
UNTOUCHED: Final = int(State.UNTOUCHED)
FINISHED: Final = int(State.FINISHED)
LEASED: Final = int(State.LEASED)
WAITING: Final = int(State.WAITING)
READY: Final = int(State.READY)
MOVING: Final = int(State.MOVING)

HAS_POLICY: Final = 1
"""A flag: the record has an envelope that the queue must read."""
DELAYED: Final = 2
"""A flag: it waits for the time that its producer set, not for its backoff."""

FINISHED_RUN: Final = bytes((FINISHED,)) * BLOCK_OFFSETS
_FINISHED_BYTE: Final = bytes([FINISHED])
_UNTOUCHED_BYTE: Final = bytes([UNTOUCHED])
_ONES: Final = array("H", [1]) * BLOCK_OFFSETS
_ZERO_ATTEMPTS: Final = array("H", bytes(2 * BLOCK_OFFSETS))
_ZERO_TIMES: Final = array("q", bytes(8 * BLOCK_OFFSETS))
_HEAD: Final = Struct("<BqBBB")
_VERSION: Final = 1
_SWAP: Final = sys.byteorder == "big"


class Block:
    """The columns. Places are offsets within the block, 0 to 127."""

    __slots__ = (
        "attempts",
        "due_ms",
        "entry_ms",
        "error_at",
        "errors",
        "flags",
        "in_ready_heap",
        "owner_at",
        "owners",
        "states",
        "stored",
        "until_ms",
    )

    def __init__(self) -> None:
        self.states = bytearray(BLOCK_OFFSETS)
        self.flags = bytearray(BLOCK_OFFSETS)
        self.attempts = _ZERO_ATTEMPTS[:]
        self.until_ms = _ZERO_TIMES[:]
        self.owner_at = bytearray(BLOCK_OFFSETS)
        self.error_at = bytearray(BLOCK_OFFSETS)
        self.owners: list[str] = [""]
        self.errors: list[str] = [""]
        self.due_ms = NEVER_MS
        self.entry_ms = NEVER_MS
        """The time of this block's entry in the timer heap; NEVER_MS if it has none."""
        self.in_ready_heap = False
        self.stored = False
        """Whether the state topic has a record of it."""

    # -- reading

    def owner(self, at: int) -> str:
        """The owner of the lease, or of the last one; empty if there was none."""
        return self.owners[self.owner_at[at]]

    def error(self, at: int) -> str | None:
        """Why the last delivery failed."""
        index = self.error_at[at]
        return self.errors[index] if index else None

    def finished_from(self, at: int) -> int:
        """The number of consecutive finished records from ``at`` on."""
        rest = self.states[at:]
        return len(rest) - len(rest.lstrip(_FINISHED_BYTE))

    def count(self, state: int) -> int:
        """The number of records in a state."""
        return self.states.count(state)

    @property
    def is_empty(self) -> bool:
        """Whether all records are untouched."""
        return self.states.count(UNTOUCHED) == BLOCK_OFFSETS

    # -- changing

    def owner_index(self, owner: str) -> int:
        """The index of an owner, which is added if it is new."""
        owners = self.owners
        try:
            return owners.index(owner)
        except ValueError:
            if len(owners) >= _NAMES_MAX:
                self.owners = owners = self._drop_unused(owners, self.owner_at)
            owners.append(sys.intern(owner))
            return len(owners) - 1

    def find_owner(self, owner: str) -> int:
        """The index of an owner; 0 if it is unknown."""
        try:
            return self.owners.index(owner)
        except ValueError:
            return 0

    def set_error(self, at: int, error: str) -> None:
        """Store why a delivery failed; a long text may be cut."""
        errors = self.errors
        try:
            index = errors.index(error)
        except ValueError:
            # Only now and then, because it is slow.
            if len(errors) % _LOOK_THROUGH == 0:
                self.error_at[at] = 0
                self.errors = errors = self._drop_unused(errors, self.error_at)
            if sum(map(len, errors)) + len(error) > _ERROR_CHARS_MAX:
                error = error[:_ERROR_CHARS_CUT]
            if error in errors:
                index = errors.index(error)
            else:
                errors.append(error)
                index = len(errors) - 1
        self.error_at[at] = index

    def _drop_unused(self, names: list[str], column: bytearray) -> list[str]:
        kept = [""]
        places: dict[int, int] = {0: 0}
        for at, state in enumerate(self.states):
            index = column[at]
            if state in (UNTOUCHED, FINISHED):
                column[at] = 0
            elif index not in places:
                places[index] = len(kept)
                kept.append(names[index])
                column[at] = places[index]
            else:
                column[at] = places[index]
        return kept

    def lease_fresh(self, start: int, stop: int, owner: str, until_ms: int) -> None:
        """Lease a run of untouched records for the first time."""
        length = stop - start
        self.states[start:stop] = bytes((LEASED,)) * length
        self.flags[start:stop] = bytes(length)
        self.attempts[start:stop] = _ONES[:length]
        self.until_ms[start:stop] = array("q", (until_ms,)) * length
        self.owner_at[start:stop] = bytes((self.owner_index(owner),)) * length
        self.error_at[start:stop] = bytes(length)
        self.due_ms = min(self.due_ms, until_ms)

    def lease(self, at: int, owner: str, until_ms: int) -> int:
        """Lease one record again; returns its attempts, including this one."""
        attempts = min(self.attempts[at] + 1, ATTEMPTS_MAX)
        self.states[at] = LEASED
        self.attempts[at] = attempts
        self.until_ms[at] = until_ms
        self.owner_at[at] = self.owner_index(owner)
        self.due_ms = min(self.due_ms, until_ms)
        return attempts

    def renew(self, at: int, until_ms: int) -> None:
        """Change the end of a lease."""
        self.until_ms[at] = until_ms
        self.due_ms = min(self.due_ms, until_ms)

    def wait(self, at: int, until_ms: int) -> None:
        """Do not deliver before ``until_ms``."""
        self.states[at] = WAITING
        self.until_ms[at] = until_ms
        self.due_ms = min(self.due_ms, until_ms)

    def make_ready(self, at: int, deadline_ms: int) -> None:
        """Let the record be delivered, unless the deadline (0 for none) passes before."""
        self.states[at] = READY
        self.until_ms[at] = deadline_ms
        if deadline_ms:
            self.due_ms = min(self.due_ms, deadline_ms)

    def forget(self, at: int) -> None:
        """Make the record untouched again."""
        self.states[at] = UNTOUCHED
        self.flags[at] = 0
        self.attempts[at] = 0
        self.until_ms[at] = 0
        self.owner_at[at] = 0
        self.error_at[at] = 0

    def due_at(self, now_ms: int) -> list[int]:
        """The places that are due; ``due_ms`` is set for the others."""
        found: list[int] = []
        due_ms = NEVER_MS
        until = self.until_ms
        for at, state in enumerate(self.states):
            if state < LEASED or state == MOVING:
                continue
            time_ms = until[at]
            if state == READY and not time_ms:
                continue
            if time_ms <= now_ms:
                found.append(at)
            elif time_ms < due_ms:
                due_ms = time_ms
        self.due_ms = due_ms
        return found

    def set_back(self, by_ms: int) -> None:
        """The block was written by a clock that is this far ahead: leases and backoffs end earlier by as much.

        Times in the record itself (its delay, its deadline) are by its producer's clock, and stay.
        """
        for at, state in enumerate(self.states):
            if state == LEASED or (state == WAITING and not self.flags[at] & DELAYED):
                self.until_ms[at] -= by_ms
        self.due_at(-1)

    # -- storing

    def encode(self, base: int, lowest: int) -> bytes | None:
        """The block from place ``lowest`` on as a value of the state topic; None if all of these records are untouched.

        ``base`` is the group's committed offset. If the committed offset is lower when the block is loaded, the group was reset
        to an earlier offset meanwhile.

        Layout, little-endian: version u8, base i64, first place u8, number of records u8, whether details follow u8; the states;
        with details the flags u8, attempts u16, until i64, owner u8 and error u8 of each; then owners and errors: number u8 and
        for each length u16 and UTF-8. The index 0 means none and is not stored.
        """
        states = self.states
        known = states[lowest:].lstrip(_UNTOUCHED_BYTE)
        if not known:
            return None
        first = BLOCK_OFFSETS - len(known)
        stop = first + len(known.rstrip(_UNTOUCHED_BYTE))
        length = stop - first
        cut = states[first:stop]
        details = cut.count(FINISHED) + cut.count(UNTOUCHED) < length
        parts: list[bytes | bytearray] = [_HEAD.pack(_VERSION, base, first, length, details), bytes(cut)]
        if details:
            attempts, until = self.attempts[first:stop], self.until_ms[first:stop]
            if _SWAP:
                attempts.byteswap()
                until.byteswap()
            parts += (self.flags[first:stop], attempts.tobytes(), until.tobytes())
            parts += (self.owner_at[first:stop], self.error_at[first:stop])
            _put_names(parts, self.owners)
            _put_names(parts, self.errors)
        return b"".join(parts)


def decode_block(data: Buffer) -> tuple[Block, int]:
    """The block and its base, or UnreadableRecord."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise UnreadableRecord("The value ends too early")
    version, base, first, length, details = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise UnreadableRecord(f"The version {version} is unknown")
    stop = first + length
    if stop > BLOCK_OFFSETS or len(view) < _HEAD.size + length * (14 if details else 1):
        raise UnreadableRecord(f"{length} records from place {first} do not fit")
    block = Block()
    at = _HEAD.size
    block.states[first:stop] = view[at : at + length]
    at += length
    if details:
        block.flags[first:stop] = view[at : at + length]
        at += length
        block.attempts[first:stop] = _column("H", view[at : at + 2 * length])
        at += 2 * length
        block.until_ms[first:stop] = _column("q", view[at : at + 8 * length])
        at += 8 * length
        block.owner_at[first:stop] = view[at : at + length]
        at += length
        block.error_at[first:stop] = view[at : at + length]
        at += length
        at = _take_names(view, at, block.owners)
        at = _take_names(view, at, block.errors)
    if at != len(view):
        raise UnreadableRecord("Bytes follow the last field")
    if (
        max(block.states) > MOVING
        or max(block.owner_at) >= len(block.owners)
        or max(block.error_at) >= len(block.errors)
    ):
        raise UnreadableRecord("A column has an invalid number")
    block.due_at(-1)
    block.stored = True
    return block, base


def _column(kind: str, data: memoryview) -> "array[int]":
    column = array(kind, bytes(data))
    if _SWAP:
        column.byteswap()
    return column


def _put_names(parts: list[bytes | bytearray], names: list[str]) -> None:
    parts.append(bytes((len(names) - 1,)))
    for name in names[1:]:
        encoded = name.encode("utf-8", "surrogatepass")
        parts.append(len(encoded).to_bytes(2, "little"))
        parts.append(encoded)


def _take_names(view: memoryview, at: int, names: list[str]) -> int:
    if at >= len(view):
        raise UnreadableRecord("The value ends before its names")
    count = view[at]
    at += 1
    for _ in range(count):
        length = int.from_bytes(view[at : at + 2], "little")
        at += 2
        if at + length > len(view):
            raise UnreadableRecord("The value ends in the middle of a name")
        try:
            names.append(sys.intern(str(view[at : at + length], "utf-8", "surrogatepass")))
        except UnicodeDecodeError as error:
            raise UnreadableRecord("A name is not UTF-8") from error
        at += length
    return at
