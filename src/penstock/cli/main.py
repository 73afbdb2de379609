"""The entry point: selects the command, runs it, and turns errors into a sentence and an exit code.

Only the command that is run is imported and built; all of them for ``--help`` and completion.
"""

import sys

try:
    import os
    from collections.abc import Sequence
    from importlib import import_module
    from typing import TYPE_CHECKING, Final

    from penstock import __version__
    from penstock.cli.failures import MEANINGS, Exit, code_of, complain, hint_of, note
except KeyboardInterrupt:
    # Ctrl-C in the first hundredth of a second: nothing was started, and a traceback would be of no use.
    sys.exit(130)

if TYPE_CHECKING:
    import typer

NOUNS: Final = (
    "serve",
    "topic",
    "produce",
    "consume",
    "tail",
    "group",
    "queue",
    "dlq",
    "why",
    "sink",
    "user",
    "key",
    "acl",
    "role",
    "quota",
    "sql",
    "pipeline",
    "cluster",
    "log",
    "encryption",
    "config",
    "context",
    "tls",
    "bench",
)
"""In the order of ``--help``. The module of each has an ``app`` with its commands, or a function of its name."""
_MODULES: Final = {"serve": "serve_command", "tail": "consume"}
"""Nouns whose module has another name."""
_COMPLETION: Final = "_PENSTOCK_COMPLETE"


def main() -> None:
    """The entry point of the ``penstock`` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        return _flushed(_dispatch(arguments))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as error:
        # Click handles a broken pipe itself: it exits with 1 and replaces stdout with a wrapper.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            return _reader_gone()
        return error.code if isinstance(error.code, int) else Exit.FAILED
    except Exception as error:
        code: int | None = code_of(error)
        if code is None:
            code = _code_of_typer(error)
        if code is None:
            if os.environ.get("PENSTOCK_DEBUG"):
                raise
            complain(f"Unexpected {type(error).__name__}: {error}; set PENSTOCK_DEBUG=1 for a traceback, and report it")
            return Exit.FAILED
        text = _text_of(error, arguments)
        if type(error).__name__ == "NoArgsIsHelpError":
            note(text)
        elif text:
            complain(text)
        return code


def _dispatch(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else ""
    if _COMPLETION not in os.environ:
        if first == "--version":
            print(f"penstock {__version__}")
            return Exit.OK
        if first == "serve" and "--help" not in arguments and "-h" not in arguments:
            from penstock.cli import serve

            return serve.main(arguments[1:])
    result = build(first if _COMPLETION not in os.environ else "")(
        args=list(arguments), prog_name="penstock", standalone_mode=False
    )
    return result if isinstance(result, int) else Exit.OK


def build(only: str = "") -> "typer.Typer":
    """The command line with one noun, or with all of them."""
    import typer

    # Without markup the epilog keeps its lines.
    root = typer.Typer(
        help="A durable message broker that every Kafka client can use.",
        epilog=_epilog(),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @root.callback()
    def options(*, version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
        # The option is answered before Typer is imported; here it is for --help.
        del version

    for noun in NOUNS:
        if only not in NOUNS or noun == only:
            module = import_module(f"penstock.cli.{_MODULES.get(noun, noun)}")
            if hasattr(module, "app"):
                root.add_typer(module.app, name=noun)
            else:
                root.command(noun)(getattr(module, noun))
    _take_aliases(root)
    return root


def _take_aliases(root: "typer.Typer") -> None:
    """Let every command accept the aliases of its options."""
    from penstock.cli.options import AliasCommand

    for command in root.registered_commands:
        command.cls = AliasCommand
    for group in root.registered_groups:
        if group.typer_instance is not None:
            _take_aliases(group.typer_instance)


def _epilog() -> str:
    codes = "; ".join(f"{code.value} {MEANINGS[code]}" for code in Exit)
    kafka = "Brokers: --bootstrap or PENSTOCK_BOOTSTRAP, by default 127.0.0.1:9092."
    http = "Queues, sinks and the cluster: --http or PENSTOCK_HTTP, by default 127.0.0.1:8080."
    contexts = "Both can come from a context, with TLS and credentials: penstock context."
    return f"Exit codes: {codes}. {kafka} {http} {contexts}"


def _flushed(code: int) -> int:
    # Here, where a broken pipe is handled, and not when Python exits.
    sys.stdout.flush()
    return code


def _reader_gone() -> int:
    # Python would fail again when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.BROKEN_PIPE


def _code_of_typer(error: Exception) -> int | None:
    """The exit code of errors of the parser. Typer has its own copy of Click or uses the real one, so the class is derived."""
    typer = sys.modules.get("typer")
    if typer is None:
        return None
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        return Exit.INTERRUPTED
    usage_error = typer.BadParameter.__mro__[1]
    return Exit.USAGE if isinstance(error, usage_error.__mro__[1]) else None


_PARSER_WORDS: Final = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "write a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "write a number"),
    ("Input should be greater than or equal to", "it must be at least"),
    ("Input should be less than or equal to", "it must be at most"),
)
"""Messages of the parser, and what is shown instead."""


def _text_of(error: Exception, arguments: Sequence[str]) -> str:
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return "" if type(error).__name__ in ("Exit", "Abort") else f"{error}{hint_of(error)}"
    text = str(format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        return text
    for theirs, ours in _PARSER_WORDS:
        text = text.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    better = _with_option_last(error, arguments)
    if better is not None:
        return f"{text.rstrip('.')}; write it after the command: {better}"
    see = f"ee {context.command_path} --help"
    return f"{text} S{see}" if text.endswith("?") else f"{text.rstrip('.')}; s{see}"


def _with_option_last(error: Exception, arguments: Sequence[str]) -> str | None:
    """For an option before the command that has it: the command line with the option after the command. None for other mistakes."""
    import shlex

    from penstock.cli.options import options_of

    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is None or type(error).__name__ != "NoSuchOption" or not hasattr(context.command, "get_command"):
        return None
    places = [index for index, word in enumerate(arguments) if word.partition("=")[0] == option]
    names = context.command.list_commands(context)
    begins = [index for index in range(places[0] + 1, len(arguments)) if arguments[index] in names] if places else []
    if not begins:
        return None
    moved, words = arguments[places[0] : begins[0]], list(arguments[begins[0] :])
    command, left = context.command, list(words)
    while left and hasattr(command, "get_command") and (found := command.get_command(context, left[0])) is not None:
        command = found
        left.pop(0)
    if option not in options_of(command):
        return None
    end = words.index("--") if "--" in words else len(words)
    words[end:end] = moved
    return shlex.join(["penstock", *arguments[: places[0]], *words])
