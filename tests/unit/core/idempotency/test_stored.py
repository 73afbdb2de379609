"""How a produce key lies in the log: what is written is read back, and nothing else is taken for it."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.idempotency.stored import (
    KEY_HEADER,
    TENANT_HEADER,
    Key,
    Note,
    decode_key,
    decode_note,
    digest_in,
    digest_of,
    encode_key,
    encode_note,
    with_key,
)

numbers = st.integers(-(2**63), 2**63 - 1)
notes = st.builds(Note, st.booleans(), st.integers(0, 2**32 - 1), numbers, numbers, numbers)
keys = st.builds(Key, st.uuids(), st.binary(min_size=20, max_size=20))


@given(keys, notes)
def test_a_key_and_its_note_are_read_back(key, note) -> None:
    assert decode_key(memoryview(encode_key(key))) == key
    assert decode_note(memoryview(encode_note(note))) == note


@given(st.binary(max_size=60))
def test_other_bytes_are_not_taken_for_one(data) -> None:
    assert decode_key(b"\x02" + data) is None
    assert decode_note(b"\x02" + data) is None
    if len(data) != 37:
        assert decode_key(data) is None


def test_the_layout_does_not_change() -> None:
    key = Key(UUID(int=1), bytes(range(20)))
    assert encode_key(key).hex() == "01" + "0" * 31 + "1" + bytes(range(20)).hex()
    assert encode_note(Note(True, 2, 3, 4, 5)).hex() == "0101" + "00000002" + "".join(f"{n:016x}" for n in (3, 4, 5))


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_tenant_and_key_do_not_run_into_each_other(tenant, key, other_tenant, other_key) -> None:
    same = digest_of(tenant, key) == digest_of(other_tenant, other_key)
    assert same == ((tenant, key) == (other_tenant, other_key))


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_a_record_is_known_by_its_headers(tenant, key) -> None:
    headers = with_key((("a", None), (KEY_HEADER, b"old"), (TENANT_HEADER, b"old")), tenant, key)
    assert digest_in(headers) == digest_of(tenant, key)
    assert headers[0] == ("a", None)
    assert [name for name, _ in headers].count(KEY_HEADER) == 1
    assert digest_in((("a", b"1"), (TENANT_HEADER, b"t"))) is None
