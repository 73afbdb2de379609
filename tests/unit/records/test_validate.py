import pytest

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import Compression, read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.records.validate import check_keys


@pytest.mark.parametrize("compression", Compression)
def test_records_without_a_key_are_named_by_their_index(compression) -> None:
    keys = [b"a", None, b"", None]
    batch = build_batch([Record(0, 0, key, b"v") for key in keys], compression=compression)
    assert [index for index, _ in check_keys(batch, read_header(batch), MIB)] == [1, 3]


def test_a_batch_of_keyed_records_has_nothing_to_complain_about() -> None:
    batch = build_batch([Record(0, 0, b"k", None)])
    assert check_keys(batch, read_header(batch), MIB) == []


def test_a_bomb_is_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", bytes(2 * MIB))], compression=Compression.ZSTD)
    with pytest.raises(PenstockError) as caught:
        check_keys(batch, read_header(batch), MIB)
    assert caught.value.reason is Reason.RECORDS_TOO_LARGE
