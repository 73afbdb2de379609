"""Exit codes, and the one place where an error becomes a sentence. Users never see a traceback.

The text is on stderr; stdout holds results only.
"""

import sys
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the process. The tables in docs/cli.md and ``penstock --help`` are made from these."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "the request was refused, or a check found a problem",
    Exit.USAGE: "invalid arguments or configuration",
    Exit.NOT_FOUND: "topic, partition, group or sink not found",
    Exit.UNREACHABLE: "no broker could be reached, or none answered in time",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.BROKEN_PIPE: "the reader of the output closed the pipe",
}


class Failure(Exception):
    """A command that cannot continue: a sentence and an exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


def complain(text: str) -> None:
    """Print an error on stderr, with a prefix on each line."""
    for line in text.splitlines() or [""]:
        print(f"error: {line}", file=sys.stderr)


def note(text: str) -> None:
    """Print a message on stderr that is not an error."""
    print(text, file=sys.stderr)


def hint_of(error: BaseException) -> str:
    """What to look at if something is not found, or nodes are missing."""
    if "penstock.client.errors" in sys.modules:
        from penstock.client import errors

        if isinstance(error, errors.BrokerRefused) and error.code in errors.NOT_FOUND_CODES:
            return f"; see penstock {'group' if error.code == errors.GROUP_ID_NOT_FOUND else 'topic'} ls"
        is_short_of_nodes = isinstance(error, errors.BrokerRefused) and error.code in errors.NODES_MISSING_CODES
        if is_short_of_nodes and "penstock cluster status" not in str(error):
            return "; penstock cluster status shows which nodes are missing"
        if isinstance(error, errors.RequestRefused) and error.is_not_found:
            return "" if _says_what_to_do(error.sentence) else "; see penstock queue ls and penstock topic ls"
        if isinstance(error, errors.RequestRefused) and error.status == errors.UNAUTHENTICATED_STATUS:
            return "; check --user and --password-file, --token-file, or the context"
    return ""


def _says_what_to_do(sentence: str) -> bool:
    return "; " in sentence


def code_of(error: BaseException) -> Exit | None:
    """The exit code of an error that a command may raise; None for any other error."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return Exit.FAILED
    # A client's error can only have been raised if its module was imported; other commands need not import it.
    if "penstock.client.errors" in sys.modules:
        from penstock.client import errors

        if isinstance(error, errors.CannotConnect | errors.RequestTimeout | errors.ConnectionLost):
            return Exit.UNREACHABLE
        if isinstance(error, errors.InvalidSecurity):
            return Exit.USAGE
        if isinstance(error, errors.BrokerRefused) and error.code in errors.NOT_FOUND_CODES:
            return Exit.NOT_FOUND
        if isinstance(error, errors.RequestRefused) and error.is_not_found:
            return Exit.NOT_FOUND
        if isinstance(error, errors.ClientError):
            return Exit.FAILED
    if "penstock.config" in sys.modules:
        from penstock.config import ConfigError

        if isinstance(error, ConfigError):
            return Exit.USAGE
    return None
