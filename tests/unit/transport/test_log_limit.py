from penstock.transport.log_limit import LogLimit


def test_ten_lines_a_minute_and_the_next_one_says_how_many_there_were_not() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.may_log() for _ in range(13)] == [True] * 10 + [False] * 3
    now = 61.0
    assert limit.may_log()
    assert limit.left_out() == " left_out=3"
    assert limit.may_log()
    assert limit.left_out() == ""
