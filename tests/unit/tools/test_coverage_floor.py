"""The floor of the coverage only rises."""

from pathlib import Path

import pytest
from coverage_floor import PYPROJECT, floor_in, raised

TEXT = '[tool.other]\nfail_under = "x"\n[tool.coverage.report]\nfail_under = 80  # only ever raised\nprecision = 1\n'


@pytest.mark.parametrize(("measured", "floor"), [(79.9, 80), (80.0, 80), (80.9, 80), (81.0, 81), (93.99, 93)])
def test_the_floor_rises_to_what_was_measured_rounded_down_and_never_falls(measured: float, floor: int) -> None:
    after = raised(TEXT, measured)
    assert floor_in(after) == floor
    assert after == TEXT.replace("= 80 ", f"= {floor} ")


def test_the_floor_of_this_project_can_be_raised() -> None:
    text = Path(PYPROJECT).read_text()
    assert floor_in(raised(text, 100.0)) == 100
