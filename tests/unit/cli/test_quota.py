"""Amounts on the command line."""

import pytest

from penstock.cli.failures import Failure
from penstock.cli.quota import amount_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("500", 500), ("0.5", 0.5), ("1MB", 1_000_000), ("1.5MiB/s", 1_572_864), ("2 kb", 2000), ("1GiB", 2**30)],
)
def test_an_amount_may_have_a_unit(text: str, wanted: float) -> None:
    assert amount_of(text) == wanted


@pytest.mark.parametrize("text", ["", "MB", "1XB", "-1", "1e3", "nan", "1 2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="is not an amount"):
        amount_of(text)
