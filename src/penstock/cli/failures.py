"""Exit codes, and the one place where an error becomes a sentence. No traceback ever reaches a user.

The text is on stderr; stdout holds results only.
"""

import sys
from enum import IntEnum


class Exit(IntEnum):
    """What the process answers. The table in docs/cli.md and in ``penstock --help`` is this one."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "the broker refused, or something is wrong with what was looked at",
    Exit.USAGE: "wrong usage or wrong configuration",
    Exit.NOT_FOUND: "no such topic, partition, group or sink",
    Exit.UNREACHABLE: "no broker could be reached, or none answered in time",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.BROKEN_PIPE: "whoever read the output went away",
}


class Failure(Exception):
    """A command that cannot go on: a sentence and an exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


def complain(text: str) -> None:
    """Say it on stderr, a line for each line."""
    for line in text.splitlines() or [""]:
        print(f"error: {line}", file=sys.stderr)


def note(text: str) -> None:
    """Something a person should know, on stderr; not an error."""
    print(text, file=sys.stderr)


def hint_of(error: BaseException) -> str:
    """Where to look when there is no such thing, or nobody who has it."""
    if "penstock.client.errors" in sys.modules:
        from penstock.client import errors

        if isinstance(error, errors.BrokerRefused) and error.code in errors.NOT_FOUND_CODES:
            return f"; see penstock {'group' if error.code == errors.GROUP_ID_NOT_FOUND else 'topic'} ls"
        is_short_of_nodes = isinstance(error, errors.BrokerRefused) and error.code in errors.NODES_MISSING_CODES
        if is_short_of_nodes and "penstock cluster status" not in str(error):
            return "; penstock cluster status says which nodes are missing"
        if isinstance(error, errors.RequestRefused) and error.is_not_found:
            return "; see penstock queue ls and penstock topic ls"
    return ""


def code_of(error: BaseException) -> Exit | None:
    """The exit code of an error that a command may raise; None when it is not one of those."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return Exit.FAILED
    # Whoever raised a client's error has imported its module; nobody else pays for it.
    if "penstock.client.errors" in sys.modules:
        from penstock.client import errors

        if isinstance(error, errors.CannotConnect | errors.RequestTimeout | errors.ConnectionLost):
            return Exit.UNREACHABLE
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
