import pytest

from penstock.core.topics.names import check_topic_name, collision_key, is_reserved, is_staging, staging_topic
from penstock.errors import PenstockError, Reason


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names_are_taken(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ü", "a\n", "a\x00", "é" * 100, "tab\t", "١"])  # noqa: RUF001  a digit that is not ASCII
def test_illegal_names_are_refused_with_a_printable_text(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        check_topic_name(name)
    assert caught.value.reason is Reason.INVALID_TOPIC
    assert caught.value.text.isprintable()
    assert caught.value.text.isascii()
    assert len(caught.value.text) < 400


def test_dots_and_underscores_collide_and_dashes_do_not() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b.c")


def test_names_of_the_broker_itself_are_reserved() -> None:
    assert staging_topic("q.0") == "__staging.q.0"
    assert [is_staging(name) for name in ("__staging.q", "__staging", "staging.q")] == [True, False, False]
    assert [is_reserved(name) for name in ("__staging.q", "__sinks", "__consumer_offsets", "orders")] == [True] * 3 + [
        False
    ]
