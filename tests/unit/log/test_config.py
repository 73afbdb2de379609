import pytest

from penstock.limits import SEGMENT_BYTES_MAX
from penstock.log.config import CleanupPolicy, LogConfig


def test_the_policy_says_what_happens_to_old_records() -> None:
    assert LogConfig().deletes
    assert not LogConfig().compacts
    both = LogConfig(cleanup=frozenset(CleanupPolicy))
    assert both.deletes
    assert both.compacts


@pytest.mark.parametrize(
    "wrong", [{"segment_bytes": 1}, {"segment_bytes": SEGMENT_BYTES_MAX + 1}, {"min_cleanable_dirty_ratio": 2.0}]
)
def test_a_config_that_could_not_work_is_a_mistake_of_ours(wrong) -> None:
    with pytest.raises(AssertionError):
        LogConfig(**wrong)
