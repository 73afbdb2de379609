"""The file of contexts: names for brokers, each with addresses and how to connect to them.

It is ``contexts.toml`` in ``$XDG_CONFIG_HOME/penstock`` (``~/.config/penstock``), or what PENSTOCK_CONTEXTS_FILE names. It has the paths of
files with passwords and tokens, never these themselves. It is replaced as a whole, so that a reader never sees half of it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.cli.failures import Exit, Failure

FIELDS: Final = (
    "bootstrap",
    "http",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "user",
    "password_file",
    "token_file",
    "sasl_mechanism",
)
"""What a context can have. All are text, except for ``tls``."""
PATHS: Final = frozenset({"tls_ca", "tls_cert", "tls_key", "password_file", "token_file"})
"""Those that are stored as absolute paths, since a context is used in any directory."""

Values = Mapping[str, str | bool]


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts, and which of them is used if none is named."""

    current: str | None = None
    known: Mapping[str, Values] = field(default_factory=dict)

    def get(self, name: str) -> Values:
        """The values of a context; a Failure if it does not exist."""
        if name not in self.known:
            names = f"the contexts are {', '.join(sorted(self.known))}" if self.known else "there are none"
            raise Failure(f"There is no context {name!r}: {names}; see penstock context --help", Exit.USAGE)
        return self.known[name]


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Where the contexts are."""
    given = environment.get("PENSTOCK_CONTEXTS_FILE")
    if given:
        return Path(given)
    folder = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home(), ".config")
    return Path(folder, "penstock", "contexts.toml")


def load(file: Path) -> Contexts:
    """The contexts; none if there is no file. A Failure if it is not valid."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    import tomllib

    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise _unreadable(file, error) from error
    current, known = data.pop("current", None), data.pop("contexts", {})
    if data or not isinstance(current, str | None) or not isinstance(known, dict):
        raise Failure(f"{file} must contain only current = NAME and tables [contexts.NAME]", Exit.USAGE)
    for name, values in known.items():
        _check(file, name, values)
    return Contexts(current, known)


def save(file: Path, contexts: Contexts) -> None:
    """Replace the file. Only its user can read it."""
    import tempfile

    lines = [] if contexts.current is None else [f"current = {_quoted(contexts.current)}"]
    for name, values in sorted(contexts.known.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [
            f"{key} = {str(value).lower() if isinstance(value, bool) else _quoted(value)}"
            for key, value in values.items()
        ]
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write("\n".join(lines).lstrip("\n") + "\n")
        Path(written).replace(file)
    except BaseException:
        Path(written).unlink(missing_ok=True)
        raise


def _unreadable(file: Path, error: Exception) -> Failure:
    why = error.strerror if isinstance(error, OSError) else error
    return Failure(f"Cannot read the contexts in {file}: {why}", Exit.USAGE)


def _check(file: Path, name: str, values: object) -> None:
    if not isinstance(values, dict):
        raise Failure(f"{file}: contexts.{name} must be a table", Exit.USAGE)
    for key, value in values.items():
        if key not in FIELDS:
            raise Failure(
                f"{file}: unknown name {key!r} in contexts.{name}; it can have {', '.join(FIELDS)}", Exit.USAGE
            )
        if not isinstance(value, bool if key == "tls" else str):
            wanted = "true or false" if key == "tls" else "text"
            raise Failure(f"{file}: {key} in contexts.{name} must be {wanted}", Exit.USAGE)


def _quoted(text: str) -> str:
    import json

    # JSON's strings are strings of TOML too, except for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
