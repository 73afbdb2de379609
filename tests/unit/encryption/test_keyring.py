import pytest

from penstock.encryption.keyring import decode, encode, master_of, new_keyring
from penstock.encryption.keys import MasterKeys
from penstock.errors import PenstockError, Reason
from tests.support.encrypted import KEYS

OTHER = MasterKeys([b"o" * 32])


def test_a_keyring_is_read_with_its_master_key() -> None:
    ring = new_keyring(complete=False)
    data = encode(ring, KEYS)
    assert decode(data, KEYS, "ring") == (ring, KEYS.current)
    assert master_of(data) == KEYS.current
    assert ring.keys[1].hex() not in repr(ring)


def test_another_master_key_is_refused_with_what_to_do() -> None:
    data = encode(new_keyring(complete=True), KEYS)
    with pytest.raises(PenstockError, match="add the missing key") as refused:
        decode(data, OTHER, "ring")
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert KEYS.current in refused.value.text


def test_an_older_master_key_still_opens_it() -> None:
    ring = new_keyring(complete=True)
    both = MasterKeys([b"o" * 32, bytes(range(32))])
    assert decode(encode(ring, KEYS), both, "ring")[0] == ring


def test_every_changed_byte_is_noticed() -> None:
    ring = new_keyring(complete=True)
    data = encode(ring, KEYS)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            found = decode(bytes(changed), KEYS, "ring")
        except PenstockError:
            continue
        # The last character of base64 has bits that mean nothing.
        assert found == (ring, KEYS.current)


def test_a_rotation_adds_a_key_for_new_data_and_keeps_the_old_ones() -> None:
    ring = new_keyring(complete=True)
    rotated = ring.extended()
    assert rotated.current == 2
    assert rotated.keys[1] == ring.keys[1]
    assert rotated.keys[2] != ring.keys[1]
    assert rotated.complete
