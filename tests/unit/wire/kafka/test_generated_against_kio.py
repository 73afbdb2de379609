"""Every API, version and direction: our bytes are kio's bytes, and our reading of them is what kio was given."""

import random

import pytest

from tests.unit.wire.kafka import oracle

ROUNDS = 8


@pytest.mark.parametrize(("api", "version", "kind"), oracle.cases(), ids=oracle.case_id)
def test_bytes_and_values_agree_with_kio(api, version, kind) -> None:
    kio_class, our_class = oracle.kio_class(api, version, kind), oracle.our_class(api, kind)
    encode = (api.encode_request_table if kind == "request" else api.encode_response_table)[version]
    decode = (api.decode_request_table if kind == "request" else api.decode_response_table)[version]
    for number in range(ROUNDS):
        theirs = oracle.random_message(kio_class, random.Random(f"{api.name} {version} {kind} {number}"))
        ours = oracle.to_ours(theirs, our_class)
        data = oracle.kio_encode(theirs)
        assert b"".join(encode(ours)) == data
        assert decode(data, 0) == ours
        assert decode(memoryview(b"head" + data + b"trailing bytes are ignored"), 4) == ours


@pytest.mark.parametrize(("api", "version", "kind"), oracle.cases(), ids=oracle.case_id)
def test_kio_reads_what_we_write(api, version, kind) -> None:
    theirs = oracle.random_message(oracle.kio_class(api, version, kind), random.Random(f"{api.name} {version} {kind}"))
    ours = oracle.to_ours(theirs, oracle.our_class(api, kind))
    encode = api.encode_request if kind == "request" else api.encode_response
    assert oracle.kio_decode(type(theirs), b"".join(encode(ours, version))) == theirs
