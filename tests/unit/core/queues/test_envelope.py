import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queues.envelope import NO_ENVELOPE, Envelope, has_policy, read_envelope, write_envelope

numbers = st.none() | st.integers(0, 10**15 - 1)
texts = st.none() | st.text(max_size=30)


@given(
    st.builds(
        Envelope,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers,
        texts,
        texts,
        texts,
        texts,
        texts,
        texts,
        numbers,
        texts,
    )
)
def test_what_is_written_is_read(envelope) -> None:
    headers = tuple((name, value) for name, value in write_envelope(envelope))
    assert read_envelope(headers) == envelope


@pytest.mark.parametrize("value", [b"", b"-1", b"ten", b"1.5", b"\xff", b" 1", b"9" * 16, None])
def test_a_number_that_is_none_is_ignored(value) -> None:
    assert read_envelope((("penstock.max_attempts", value),)) == NO_ENVELOPE


def test_text_that_is_not_utf_8_is_ignored_and_the_last_of_a_name_counts() -> None:
    headers = (("penstock.run_id", b"\xff"), ("penstock.step_id", b"1"), ("penstock.step_id", b"2"), ("other", b"x"))
    assert read_envelope(headers) == Envelope(step_id="2")


def test_only_what_the_queue_acts_on_is_a_policy() -> None:
    assert has_policy((("penstock.deadline_ms", b"1"),))
    assert not has_policy((("penstock.run_id", b"1"), ("mine", b"2")))
