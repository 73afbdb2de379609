"""Which records a reader of committed transactions sees."""

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import MIB
from penstock.records.batch import Compression, read_header, set_offset
from penstock.records.builder import BatchBuilder
from penstock.records.columnar import decode

ABORT, COMMIT = 0, 1


class Log:
    """Batches one behind the other, as transactional producers would leave them."""

    def __init__(self) -> None:
        self.batches = []
        self.end = 0

    def add(self, *values: bytes, producer: int = -1, transactional: bool = True) -> int:
        builder = BatchBuilder()
        for value in values:
            builder.add(1000, None, value)
        return self._append(builder.build(producer_id=producer, producer_epoch=0, transactional=transactional))

    def mark(self, producer: int, kind: int, compression: Compression = Compression.NONE) -> int:
        builder = BatchBuilder()
        builder.add(1000, pack(">hh", 0, kind), pack(">hi", 0, 0))
        return self._append(
            builder.build(
                producer_id=producer, producer_epoch=0, transactional=True, control=True, compression=compression
            )
        )

    def _append(self, batch: bytearray) -> int:
        begin = self.end
        set_offset(batch, begin, 0)
        header = read_header(batch)
        self.batches.append((header, bytes(batch)))
        self.end = header.next_offset
        return begin

    def values(self, aborted: list[tuple[int, int]], from_offset: int = 0) -> list[bytes]:
        found = decode(
            self.batches,
            columns=frozenset({"value"}),
            from_offset=from_offset,
            to_offset=self.end,
            aborted=aborted,
            bytes_max=MIB,
        )
        return [value for batch in found for value in batch.column("value").to_pylist()]


def test_control_batches_are_no_records() -> None:
    log = Log()
    log.add(b"a", producer=1)
    log.mark(1, COMMIT)
    log.mark(2, ABORT)
    assert log.values([]) == [b"a"]


def test_an_aborted_transaction_is_left_out_and_the_next_of_its_producer_is_not() -> None:
    log = Log()
    log.add(b"before", producer=7)
    log.mark(7, COMMIT)
    first = log.add(b"a", b"b", producer=7)
    log.add(b"c", producer=7)
    log.mark(7, ABORT)
    log.add(b"after", producer=7)
    log.mark(7, COMMIT)
    assert log.values([(7, first)]) == [b"before", b"after"]


def test_other_producers_between_are_seen() -> None:
    log = Log()
    first = log.add(b"gone", producer=7)
    log.add(b"plain", producer=-1, transactional=False)
    log.add(b"idempotent", producer=9, transactional=False)
    log.add(b"theirs", producer=8)
    log.add(b"gone too", producer=7)
    log.mark(7, ABORT)
    log.mark(8, COMMIT)
    assert log.values([(7, first)]) == [b"plain", b"idempotent", b"theirs"]


def test_the_aborted_may_come_in_any_order_and_have_begun_before_what_was_fetched() -> None:
    log = Log()
    log.add(b"gone", producer=7)
    log.mark(7, ABORT)
    second = log.add(b"gone as well", producer=8)
    log.mark(8, ABORT, Compression.LZ4)
    log.add(b"seen", producer=7)
    assert log.values([(8, second), (7, -50)]) == [b"seen"]


def test_a_producer_may_abort_twice() -> None:
    log = Log()
    first = log.add(b"1", producer=7)
    log.mark(7, ABORT)
    log.add(b"2", producer=7)
    log.mark(7, COMMIT)
    third = log.add(b"3", producer=7)
    log.mark(7, ABORT)
    log.add(b"4", producer=7)
    assert log.values([(7, first), (7, third)]) == [b"2", b"4"]


def test_markers_before_the_wanted_offset_count() -> None:
    log = Log()
    first = log.add(b"gone", producer=7)
    log.mark(7, ABORT)
    begin = log.add(b"seen", producer=7)
    assert log.values([(7, first)], from_offset=begin) == [b"seen"]


actions = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["add", "add", "commit", "abort"])), max_size=40)


@given(actions)
def test_whatever_the_order_only_what_was_not_aborted_is_seen(steps) -> None:
    log = Log()
    aborted, seen = [], []
    open_values: dict[int, list[bytes]] = {}
    began: dict[int, int] = {}
    for number, (producer, action) in enumerate(steps):
        if action == "add":
            value = b"%d" % number
            begin = log.add(value, producer=producer)
            began.setdefault(producer, begin)
            open_values.setdefault(producer, []).append(value)
        elif producer in began:
            log.mark(producer, COMMIT if action == "commit" else ABORT)
            values, first = open_values.pop(producer), began.pop(producer)
            if action == "commit":
                seen += values
            else:
                aborted.append((producer, first))
    # A reader stops at the first transaction that is still open; here they are all taken for committed.
    seen += [value for values in open_values.values() for value in values]
    assert sorted(log.values(aborted)) == sorted(seen)
