"""Which rows there are, and why one cannot be run."""

import pytest

from penstock.address import Address
from penstock.bench.context import Endpoints
from penstock.bench.faults import BenchError
from penstock.bench.gateways import wrk
from penstock.bench.gateways.workloads import GATEWAY_WORKLOADS
from penstock.bench.run import select

HERE = Address("127.0.0.1", 1)
BY_NAME = {row.name: row for row in GATEWAY_WORKLOADS}


def test_rows_are_chosen_by_name_in_their_usual_order() -> None:
    assert [row.name for row in select(["grpc-unary", "http-single"], GATEWAY_WORKLOADS)] == [
        "http-single",
        "grpc-unary",
    ]
    assert len(select([], GATEWAY_WORKLOADS)) == len(BY_NAME) == len(GATEWAY_WORKLOADS)
    with pytest.raises(BenchError, match="Unknown workload nonsense; choose from"):
        select(["nonsense"], GATEWAY_WORKLOADS)


def test_a_row_whose_gateway_is_off_says_how_to_start_it() -> None:
    assert "start the broker with --tcp" in BY_NAME["tcp-64"].why_not(Endpoints(HERE, http=HERE, grpc=HERE))
    assert BY_NAME["tcp-64"].why_not(Endpoints(HERE, tcp=HERE)) is None
    assert "--grpc" in BY_NAME["delivery-tcp-grpc"].why_not(Endpoints(HERE, tcp=HERE))


def test_a_row_that_needs_wrk_says_so_where_it_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(wrk, "is_installed", lambda: False)
    assert "install the package wrk" in BY_NAME["http-single"].why_not(Endpoints(HERE, http=HERE))
    assert BY_NAME["http-ndjson"].why_not(Endpoints(HERE, http=HERE)) is None
