"""Which rows there are, and why one cannot be run."""

import pytest

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.gateways import wrk
from penstock.bench.gateways.context import Endpoints
from penstock.bench.gateways.rows import GATEWAY_ROWS, select_rows

HERE = Address("127.0.0.1", 1)
BY_NAME = {row.name: row for row in GATEWAY_ROWS}


def test_rows_are_chosen_by_name_in_their_usual_order() -> None:
    assert [row.name for row in select_rows(["grpc-unary", "http-single"])] == ["http-single", "grpc-unary"]
    assert len(select_rows([])) == len(BY_NAME) == len(GATEWAY_ROWS)
    with pytest.raises(BenchError, match="no row is called nonsense: choose from"):
        select_rows(["nonsense"])


def test_a_row_whose_gateway_is_off_says_how_to_start_it() -> None:
    assert "start it with --tcp" in BY_NAME["tcp-64"].why_not(Endpoints(HERE, http=HERE, grpc=HERE))
    assert BY_NAME["tcp-64"].why_not(Endpoints(HERE, tcp=HERE)) is None
    assert "--grpc" in BY_NAME["delivery-tcp-grpc"].why_not(Endpoints(HERE, tcp=HERE))


def test_a_row_that_needs_wrk_says_so_where_it_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(wrk, "is_installed", lambda: False)
    assert "install Debian's package wrk" in BY_NAME["http-single"].why_not(Endpoints(HERE, http=HERE))
    assert BY_NAME["http-ndjson"].why_not(Endpoints(HERE, http=HERE)) is None
