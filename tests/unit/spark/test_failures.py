import pytest

from penstock.spark.failures import sentence_of

MISSING = """[TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot be found. Verify the spelling and correctness of the schema and catalog.
Search path: [`system`.`builtin`, `system`.`session`, `spark_catalog`.`default`].
If you did not qualify the name with a schema, verify the current_schema() output, or qualify the name with the correct schema.
To tolerate the error on drop use DROP VIEW IF EXISTS or DROP TABLE IF EXISTS. SQLSTATE: 42P01; line 1 pos 14;
'Project [*]
+- 'UnresolvedRelation [nowhere], [], false
"""
SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
SELEC 1
^^^
"""
IN_A_WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed to read with Python data source penstock: Traceback (most recent call last):
  File "/x/penstock/client/connection.py", line 51, in connect
    raise CannotConnect(text)
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/penstock/spark/source/batch.py", line 51, in partitions
    raise DataLossError(text)
penstock.spark.errors.DataLossError: records 5 to 9 of orders/0 are gone: set failOnDataLoss to false to go on without them
 SQLSTATE: 38000
\tat org.apache.spark.sql.Something.run(Something.scala:1)
"""
STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "/x/routing.py", line 20, in <module>
    1 / 0
ZeroDivisionError: division by zero
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: large [id = 1, runId = 2]
"""
JAVA = "Job aborted.\n\tat org.apache.spark.A.b(A.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MISSING, "The table or view `nowhere` cannot be found (line 1, character 15)"),
        (SYNTAX, "Syntax error at or near 'SELEC' (line 1, character 1)"),
        (IN_A_WORKER, "records 5 to 9 of orders/0 are gone: set failOnDataLoss to false to go on without them"),
        (STREAM, "ZeroDivisionError: division by zero"),
        (JAVA, "Job aborted"),
        ("", "RuntimeError"),
    ],
)
def test_what_spark_raises_becomes_a_sentence(text, sentence) -> None:
    assert sentence_of(RuntimeError(text)) == sentence


class Thrown(Exception):
    """As an exception of Java's looks from Python."""

    def __init__(self, *messages) -> None:
        super().__init__("An error occurred while calling o12.getResult.\n: java.lang.RuntimeException\n\tat x(y)")
        self.java_exception = Cause(*messages)


class Cause:
    def __init__(self, message, *causes) -> None:
        self._message, self._causes = message, causes

    def getMessage(self):  # noqa: N802  Java's name
        return self._message

    def getCause(self):  # noqa: N802  Java's name
        return Cause(*self._causes) if self._causes else None


def test_the_cause_of_a_java_exception_is_reported() -> None:
    assert (
        sentence_of(Thrown("Exception thrown in awaitResult: ", "[USER_RAISED_EXCEPTION] boom SQLSTATE: P0001"))
        == "boom"
    )
    assert sentence_of(Thrown("Job aborted", IN_A_WORKER, "Connection reset")) == sentence_of(Exception(IN_A_WORKER))
    assert (
        sentence_of(Thrown(None, None)) == "An error occurred while calling o12.getResult. : java.lang.RuntimeException"
    )
