"""What Spark says, cut to what it means."""

import sys

import pytest

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.plan import _called, spark_text

TRACE = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed to read: Traceback (most recent call last):
  File "source.py", line 3, in read
    raise DataLossError(text)
penstock.spark.errors.DataLossError: orders/0 [0, 1) cannot be read completely: the partition now starts at offset 1.
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = 1]
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            (
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. Did you mean [`amount`]. "
                "SQLSTATE: 42703; line 1 pos 11;\n'Project ['amout]\n"
            ),
            "A column with name `amout` cannot be resolved. Did you mean [`amount`].",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 3, pos 18)\n\n== SQL ==\nSELECT",
            "Syntax error at or near 'x'.",
        ),
        (TRACE, "orders/0 [0, 1) cannot be read completely: the partition now starts at offset 1."),
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: [USER_RAISED_EXCEPTION] orders/0@1: bad SQLSTATE: P0001 "
                "SQLSTATE: XXKST\n=== Streaming Query ===\nLogical Plan:"
            ),
            "orders/0@1: bad",
        ),
        (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. SQLSTATE: 42KDE",
            'Invalid streaming output mode: append. Write mode = "update", or set a watermark for the source.',
        ),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'penstock'\n",
            "Penstock is not installed in the Python of the Spark Connect server, and Spark does not send it there for streams: run pip install 'penstock[spark]' there",
        ),
        ("", "RuntimeError"),
    ],
)
def test_codes_plans_and_traces_are_left_out(text, told) -> None:
    assert spark_text(RuntimeError(text)) == told


def test_state_of_another_query_is_reported_with_what_to_do() -> None:
    text = "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.\nSQLSTATE: 42K06"
    assert spark_text(RuntimeError(text)).endswith("set a new checkpoint for the pipeline, or rename the sink.")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError('id')", r"s\.py:f failed \(s\.py, line 2\): KeyError: 'id'"),
        ("import sys; sys.exit(3)", r"s\.py:f failed \(s\.py, line 2\): SystemExit: 3"),
    ],
)
def test_a_step_that_raises_is_reported_with_its_line(tmp_path, monkeypatch, body, told) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "s", raising=False)
    (tmp_path / "s.py").write_text(f"def f(frame):\n    {body}\n")
    with pytest.raises(PipelineError, match=told):
        _called("s.py:f", tmp_path, None, None)
    sys.modules.pop("s", None)
