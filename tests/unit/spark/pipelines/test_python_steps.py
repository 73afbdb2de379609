"""Python steps are checked by their text, and imported only to run."""

import pytest

from penstock.spark.pipelines.python_steps import load, problem_with

STEPS = """
import sys
sys.ran_the_step_file = True

def enrich(frame):
    return ("enriched", frame)

def with_session(frame, spark):
    return (frame, spark)

def nothing():
    pass

def too_many(a, b, c):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "broken.py").write_text("def f(:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("steps.py:enrich", None),
        ("steps.py:with_session", None),
        ("json:loads", None),
        ("steps.py", 'got "steps.py", expected "FILE.py:FUNCTION" or "MODULE:FUNCTION"'),
        ("steps.py:enrch", "steps.py has no function enrch; did you mean enrich?"),
        ("step.py:enrich", "there is no file step.py in the same folder; did you mean steps.py?"),
        ("steps.py:nothing", "steps.py:11: nothing must take a DataFrame, or a DataFrame and spark"),
        ("steps.py:too_many", "steps.py:14: too_many must take a DataFrame, or a DataFrame and spark"),
        ("broken.py:f", "broken.py:1: invalid syntax"),
        (
            "no_such_thing.x:f",
            'module no_such_thing.x does not exist; install it, or write "FILE.py:FUNCTION" for a file in the same folder',
        ),
        ("a b:f", '"a b" is neither a file nor a module; write "FILE.py:FUNCTION" or "MODULE:FUNCTION"'),
    ],
)
def test_the_name_of_a_function_is_checked(folder, text, problem) -> None:
    assert problem_with(text, folder) == problem


def test_checking_runs_nothing(folder) -> None:
    import sys

    vars(sys).pop("ran_the_step_file", None)
    problem_with("steps.py:enrich", folder)
    assert not hasattr(sys, "ran_the_step_file")


def test_a_function_gets_the_session_when_it_asks_for_it(folder) -> None:
    assert load("steps.py:enrich", folder)("frame", "spark") == ("enriched", "frame")
    assert load("steps.py:with_session", folder)("frame", "spark") == ("frame", "spark")
