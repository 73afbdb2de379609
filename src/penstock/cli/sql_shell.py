r"""The prompt of ``penstock sql``: a statement may span lines and ends with ``;``, and the arrow keys recall earlier ones.

``\d`` lists what can be queried, ``\d NAME`` its columns, ``\?`` or help shows all commands, and ``\q``, exit, quit or Ctrl-D leaves. A command
extends from its backslash to the end of the line and runs at once, as in psql: a statement that was begun before continues after it. A script
is read in the same way.

If a statement fails, the error is a sentence and the prompt returns; so it does after Ctrl-C, which cancels what Spark does for the statement.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from penstock.cli.failures import Exit, Failure, code_of, complain, hint_of, note
from penstock.spark.pipelines.sqltext import tokens_of

LOG: Final = logging.getLogger(__name__)
PROMPT: Final = "sql> "
PROMPT_MORE: Final = "  -> "
HISTORY_LINES_MAX: Final = 1_000
CANCEL_INTERVAL_S: Final = 0.2
CANCEL_WAIT_S: Final = 10.0
LEAVE: Final = "\\q"
ASK_HELP: Final = "\\?"
_WORDS: Final = {"exit": LEAVE, "quit": LEAVE, "help": ASK_HELP}
"""Commands without a backslash, in upper or lower case: alone on a line or before a semicolon, outside of statements."""
HELP: Final = r"""SELECT ...;   run a statement, which may span several lines and ends with a semicolon
\d            list what can be queried: topics, and the state of the broker
\d NAME       list the columns of one
\? or help    show this help
\q or exit    leave (also quit, Ctrl-D)
A command runs at once, and a statement that you have begun continues after it; Ctrl-C discards the statement."""


def parts_of(text: str) -> tuple[list[str], str]:
    """The statements in a text, without the semicolons between them, and the commands; and the incomplete statement at its end.

    Statements are ordered by their ends: a command inside of one comes before it.
    """
    parts: list[str] = []
    begun = ""
    while text:
        start, end, rest = 0, len(text), ""
        is_begun = any(tokens_of(begun))
        for token in tokens_of(text):
            is_command = token.kind == "sign" and token.text == "\\"
            if is_command or not is_begun:
                line, _, after = text[token.start :].partition("\n")
                if is_command or _word_in(line) is not None:
                    parts.append(line)
                    end, rest = token.start, after
                    break
            is_begun = token.text != ";"
            if token.kind == "open":
                # What follows is quoted, and the end of the quote is not known yet.
                break
            if token.kind == "sign" and token.text == ";":
                parts.append(begun + text[start : token.start])
                begun, start = "", token.end
        begun += text[start:end]
        text = rest
    found = [_word_in(part) or part.strip() for part in parts if any(tokens_of(part))]
    return found, begun if any(tokens_of(begun)) else ""


def _word_in(line: str) -> str | None:
    return _WORDS.get(line.strip().rstrip("; ").casefold())


def script_of(text: str) -> list[str]:
    """The statements and commands of a text, in order, up to one that leaves; the last needs no semicolon."""
    parts, begun = parts_of(text)
    if LEAVE in parts:
        return parts[: parts.index(LEAVE)]
    return [*parts, begun.strip()] if begun else parts


def shell(run: Callable[[str], None]) -> None:
    """Read and run until the user leaves."""
    note(r"Every topic is a view; end each statement with ;  (\d lists the views, \? shows help, \q leaves)")
    with _history(), _own_interrupts():
        gathered = ""
        while True:
            try:
                line = input(PROMPT_MORE if gathered else PROMPT)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                gathered = ""
                continue
            # Also in a quote that was opened by mistake.
            if line.strip() == LEAVE:
                return
            parts, gathered = parts_of(f"{gathered}{line}\n")
            for part in parts:
                if part == LEAVE:
                    return
                if not _succeeds(lambda part=part: obey(part, run)):  # type: ignore[misc]
                    if not part.startswith("\\"):
                        gathered = ""
                    break


def obey(part: str, run: Callable[[str], None]) -> None:
    """Run a statement or a command."""
    if not part.startswith("\\"):
        run(part)
        return
    name, *rest = part.split(maxsplit=1)
    argument = "".join(rest).rstrip("; ")
    name = name.rstrip(";")
    if name == "\\d" and argument:
        run(f"DESCRIBE {argument if argument.startswith('`') else f'`{argument}`'}")
    elif name == "\\d":
        run("SHOW TABLES")
    elif name == ASK_HELP:
        print(HELP)
    else:
        raise Failure(f"Unknown command {name}; there are \\d, \\d NAME, \\q and \\?", Exit.USAGE)


def _succeeds(act: Callable[[], None]) -> bool:
    """Whether it succeeds; an error is shown, and the prompt returns."""
    with _interruptible() as interrupted:
        try:
            act()
        except KeyboardInterrupt:
            interrupted.set()
        except Exception as error:
            # The error of a cancelled job is not of interest.
            if not interrupted.is_set():
                if code_of(error) is None:
                    raise
                complain(f"{error}{hint_of(error)}")
                return False
    if interrupted.is_set():
        note("Interrupted")
    return not interrupted.is_set()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Handle Ctrl-C here. PySpark's handler uses the connection to Java that waits for the result of the statement, and breaks it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """While a statement runs, Ctrl-C sets the event and cancels Spark's jobs, also those that the statement has not started yet.

    A call to Java is waited for, since its connection is unusable if the result is not read; once its job is cancelled it ends soon.
    """
    interrupted, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    cancel = _canceller()

    def cancel_until_over() -> None:
        cancel()
        while not over.wait(CANCEL_INTERVAL_S):
            cancel()

    # Another thread has a connection of its own.
    cancelling = threading.Thread(target=cancel_until_over, name="cancel", daemon=True)

    def handle(number: int, frame: FrameType | None) -> None:
        del number
        if over.is_set():
            return
        if not interrupted.is_set():
            interrupted.set()
            cancelling.start()
        if not _is_in_java(frame):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        over.set()
        if cancelling.ident is not None:
            # Otherwise it might cancel the next statement.
            cancelling.join(CANCEL_WAIT_S)
        signal.signal(signal.SIGINT, before)


def _canceller() -> Callable[[], None]:
    """Cancels everything that the session does, if there is one."""
    if "pyspark.sql" not in sys.modules:
        return lambda: None
    from pyspark.sql import SparkSession

    from penstock.spark.shipping import is_remote

    spark = SparkSession.getActiveSession()
    if spark is None:
        return lambda: None
    act: Callable[[], object] = spark.interruptAll if is_remote(spark) else spark.sparkContext.cancelAllJobs

    def cancel() -> None:
        try:
            act()
        except Exception:
            # The statement itself reports what is wrong with Spark.
            LOG.debug("cannot cancel the Spark statement", exc_info=True)

    return cancel


def _is_in_java(frame: FrameType | None) -> bool:
    """Whether the current code waits for Java."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "py4j":
            return True
        frame = frame.f_back
    return False


@contextmanager
def _history() -> Iterator[None]:
    """Earlier lines, kept between runs, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    from penstock.spark.cache import cache_folder

    path = os.path.join(cache_folder(), "sql_history")
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
