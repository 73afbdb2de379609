"""``penstock sql``: queries over topics, from the command line or at a prompt. Every topic is a view.

The broker is asked for its topics before Spark is started, so a wrong address is reported at once. What Spark itself writes to stderr
goes to a file, which is shown only if Spark does not start.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connecting import client_security
from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_S_DEFAULT, Bootstrap, Timeout, connected, parse_pairs
from penstock.cli.places import parse_place
from penstock.cli.progress import waiting
from penstock.cli.sql_rows import RowFormat, write_rows
from penstock.cli.stderr import stderr_into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.views import Views

ROWS_DEFAULT: Final = 100
LOG_LINES_SHOWN: Final = 20
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Java compiles once, and not a second time for speed: for a query of seconds that would take most of the CPU time.
Nor does it collect garbage each time that the loaded classes have outgrown a limit that begins low."""
SUFFIXES: Final = "For each topic there are also NAME__json, with the fields of its JSON values as columns, and NAME__raw, with key and value as bytes"
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAMES_NOTHING: Final = "TABLE_OR_VIEW_NOT_FOUND"
_MUST_BE_QUOTED: Final = "INVALID_IDENTIFIER"

Query = Annotated[
    str | None,
    typer.Argument(
        metavar="QUERY",
        help="Run these SQL statements, separated by semicolons. By default, open a prompt, or read statements from stdin.",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="PENSTOCK_SPARK_MASTER",
        help="Run Spark here: local[*], spark://..., yarn, k8s://..., or sc://...",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Show the fields of JSON values as columns, as TOPIC__json does.")]
From = Annotated[str | None, typer.Option("--from", "-f", metavar="PLACE", help="Read from earliest, or from a time.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Read up to this time instead of the end.")]
Last = Annotated[
    str | None, typer.Option("--last", "-l", metavar="TIME", help="Read only the last 30s, 15m, 2h or 7d.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many rows in a table.")]
RowOutput = Annotated[RowFormat, typer.Option("--output", "-o", help="Print a table, or all rows in another format.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", "-c", metavar="NAME=VALUE", help="Set a Spark setting; can be repeated.")
]


def sql(
    query: Query = None,
    as_json: Json = False,
    start: From = None,
    to: To = None,
    last: Last = None,
    output: RowOutput = RowFormat.TABLE,
    limit: Limit = ROWS_DEFAULT,
    master: Master = "local[*]",
    conf: Conf = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> int:
    r"""Query topics with SQL.

    Every topic is a view with the columns key, value, partition, offset, timestamp and headers. TOPIC__json has the fields of
    its JSON values as columns. There are also the views penstock_topics, penstock_partitions, penstock_groups,
    penstock_dead_letters and penstock_queue. Write names with dots or dashes in backticks. \d lists all views, and \d NAME the
    columns of one; both can be used in place of a query.
    """
    from penstock.cli.sql_shell import ASK_HELP, HELP, LEAVE, obey, parts_of, script_of, shell

    options = range_options(start, to, last, int(time() * 1000))
    settings = parse_pairs(conf, "--conf")
    at_prompt = query is None and sys.stdin.isatty()
    text = "" if at_prompt else sys.stdin.read() if query is None else query
    script = script_of(text)
    if not at_prompt and {*script} <= {ASK_HELP} and (script or LEAVE in parts_of(text)[0]):
        # None of this needs Spark.
        for _ in script:
            print(HELP)
        return Exit.OK
    if not at_prompt and not script:
        raise Failure(
            "No query given: write penstock sql 'SELECT ...', or run it on a terminal for a prompt", Exit.USAGE
        )
    with connected(bootstrap, timeout) as cluster:
        cluster.describe(())
    with _started(master, settings) as spark:
        from penstock.spark.views import Views

        with Views(spark, bootstrap, options=options, json=as_json, security=client_security()) as views:

            def run(statement: str) -> None:
                answer(spark, views, statement, output, limit)

            if at_prompt:
                shell(run)
            for part in script:
                obey(part, run)
    return Exit.OK


def answer(spark: "SparkSession", views: "Views", statement: str, output: RowFormat, rows_max: int) -> None:
    """Run one statement and print its result; a Failure if it cannot be run."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.failures import sentence_of
    from penstock.spark.views import NotJson, SameName

    listed = _listed(views, statement)
    if listed is not None:
        write_rows(*listed, output, None)
        if output is RowFormat.TABLE:
            note(SUFFIXES)
        return
    try:
        with waiting("running the query"):
            frame = _analysed(spark, views, statement)
            # A table fetches one row more than it shows, to know whether there are more; the rest streams.
            rows = frame.limit(rows_max + 1).collect() if output is RowFormat.TABLE else frame.toLocalIterator()
        write_rows(frame.columns, rows, output, rows_max)
    except (NotJson, SameName) as error:
        raise Failure(str(error)) from error
    except Py4JJavaError as error:
        # Streamed rows come directly from Java, and so do their errors.
        raise Failure(sentence_of(error)) from error
    except (ValueError, OverflowError) as error:
        raise Failure(f"A date or time in the result cannot be shown ({error}); cast it to STRING") from error
    except PySparkException as error:
        condition = error.getCondition()
        hint = views.hint(statement)
        if hint and condition == _MUST_BE_QUOTED:
            raise Failure(hint) from error
        if not hint and condition == _NAMES_NOTHING:
            hint = "see penstock topic ls"
        code = Exit.NOT_FOUND if condition == _NAMES_NOTHING else Exit.FAILED
        raise Failure(f"{sentence_of(error)}{f'; {hint}' if hint else ''}", code) from error


def _analysed(spark: "SparkSession", views: "Views", statement: str) -> "DataFrame":
    """The query over views with the columns that it names; over all columns if it uses one without naming it."""
    from pyspark.errors import AnalysisException

    views.prepare(statement)
    try:
        return spark.sql(statement)
    except AnalysisException as error:
        if error.getCondition() in (_NAMES_NOTHING, _MUST_BE_QUOTED):
            raise
    # Also for the error, which then suggests the existing columns.
    views.prepare(statement, all_columns=True)
    return spark.sql(statement)


def _listed(views: "Views", statement: str) -> tuple[list[str], list[tuple[str, str]]] | None:
    """The result of SHOW TABLES: also views that are not registered yet."""
    if statement.upper().split() not in (["SHOW", "TABLES"], ["SHOW", "VIEWS"]):
        return None
    return ["name", "what"], names_there(views.topics())


def names_there(topics: list[str]) -> list[tuple[str, str]]:
    """Every name that a query may use, as it must be written."""
    from penstock.spark.views import TABLES

    rows = [(topic if topic.isidentifier() else f"`{topic}`", "topic") for topic in topics]
    return [*rows, *((name, "state of the broker") for name in TABLES)]


def range_options(start: str | None, to: str | None, last: str | None, now_ms: int) -> dict[str, str]:
    """The options of the source for the selected records. A time after the last record selects none, and is not an error."""
    options = {}
    if last is not None:
        if start is not None:
            raise Failure("--last cannot be combined with --from", Exit.USAGE)
        found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", last)
        if found is None:
            raise Failure(f"--last {last!r}: write a duration such as 30s, 15m, 2h or 7d", Exit.USAGE)
        options["startingTimestamp"] = str(now_ms - int(found[1]) * _UNIT_MS[found[2]])
    elif start is not None:
        place = parse_place(start)
        if place.offset is not None or place.latest:
            raise Failure(
                f"--from {start!r}: write earliest or a time; for offsets use WHERE offset >= ...", Exit.USAGE
            )
        if place.moment_ms is not None:
            options["startingTimestamp"] = str(place.moment_ms)
    if "startingTimestamp" in options:
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if to is not None:
        from penstock.cli.places import parse_moment

        options["endingTimestamp"] = str(parse_moment(to, "--to"))
    return options


@contextmanager
def _started(master: str, settings: dict[str, str]) -> Iterator["SparkSession"]:
    """A session; a message on stderr shows that it is starting, which takes seconds."""
    from penstock.spark.sessions import SparkMissing, is_local, need_spark

    try:
        need_spark()
    except SparkMissing as error:
        raise Failure(str(error), Exit.USAGE) from error
    with tempfile.TemporaryFile("w+", prefix="penstock-sql-", errors="replace") as log:
        if not sys.stderr.isatty():
            note("starting Spark...")
        try:
            with waiting("starting Spark"), stderr_into(log.fileno()):
                spark = _session(master, settings)
        except Exception as error:
            from penstock.spark.java import JavaError

            if isinstance(error, JavaError | ImportError):
                raise Failure(str(error)) from error
            from pyspark.errors import PySparkException

            from penstock.spark.failures import sentence_of

            if not isinstance(error, PySparkException):
                raise
            log.seek(0)
            for line in log.read().splitlines()[-LOG_LINES_SHOWN:]:
                complain(line)
            raise Failure(f"Spark did not start: {sentence_of(error)}") from error
        try:
            yield spark
        finally:
            # A local Spark stops with its Java, which ends with this process: there is no need to wait a second for it.
            if not is_local(master):
                with stderr_into(log.fileno()):
                    spark.stop()


def _session(master: str, settings: dict[str, str]) -> "SparkSession":
    from penstock.spark import session
    from penstock.spark.sessions import is_local

    usual: dict[str, object] = {"spark.ui.showConsoleProgress": False}
    if is_local(master):
        usual["spark.driver.extraJavaOptions"] = QUICK_JAVA
    return session("penstock sql", master, **{**usual, **settings})
