"""The layers of the configuration, read into flat ``path -> (value, source)`` maps. The paths are not checked here.

Python's TOML parser reports no line numbers, so the line of a key is searched in the text. It is left out for a key that the search
does not support (inline tables).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.settings import SettingSource, SourceKind

ENVIRONMENT_PREFIX = "PENSTOCK__"
_FLAGS = {
    "cluster.name": "--cluster",
    "tls.cert_file": "--tls-cert",
    "tls.key_file": "--tls-key",
    "tls.ca_file": "--tls-ca",
    "tls.client_auth": "--tls-client-auth",
}
"""Flags with another name than their key."""


class ConfigError(ValueError):
    """The configuration is invalid; ``problems`` has a sentence for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Found(NamedTuple):
    """A raw value and where it was found. Text from the environment is converted leniently ("1" is a number)."""

    value: object
    source: SettingSource


Layer = dict[str, Found]


def read_toml(path: Path) -> Layer:
    """The values of the file by their paths; ConfigError if it cannot be read or is not valid TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError([f"cannot read the configuration {path}: {reason}"]) from error
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path} is not valid TOML: {error}"]) from error
    lines = _line_numbers(text)
    layer: Layer = {}
    for dotted, value in _flatten(tree):
        line = lines.get(dotted)
        layer[dotted] = Found(value, SettingSource(SourceKind.FILE, f"{path}:{line}" if line else str(path)))
    return layer


def read_environment(environment: Mapping[str, str]) -> Layer:
    """``PENSTOCK__LOG__FLUSH`` as ``log.flush``, ``PENSTOCK__TLS__HTTP__ENABLED`` as ``tls.http.enabled``.

    A topic config's dots are underscores: ``...__RETENTION_MS``.
    """
    layer: Layer = {}
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        section, _, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if section == "topic_defaults":
            key = key.replace("_", ".")
        else:
            key = key.replace("__", ".")
        layer[f"{section}.{key}" if key else section] = Found(
            environment[name], SettingSource(SourceKind.ENVIRONMENT, name)
        )
    return layer


def read_flags(flags: Mapping[str, object]) -> Layer:
    """Flags by the path that they set; those that are None were not given."""
    return {
        path: Found(
            value, SettingSource(SourceKind.FLAG, _FLAGS.get(path) or "--" + path.rpartition(".")[2].replace("_", "-"))
        )
        for path, value in flags.items()
        if value is not None
    }


def _flatten(tree: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat.extend(_flatten(value, f"{prefix}{key}."))
        else:
            flat.append((prefix + key, value))
    return flat


def _line_numbers(text: str) -> dict[str, int]:
    """The line of each ``key = value`` and each ``[section]`` by its dotted path."""
    numbers: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            name = _dotted(stripped.partition("#")[0].strip(" []"))
            numbers.setdefault(name, number)
            section = name + "."
        elif "=" in stripped and not stripped.startswith("#"):
            numbers.setdefault(section + _dotted(stripped.partition("=")[0]), number)
    return numbers


def _dotted(key: str) -> str:
    return key.replace('"', "").replace("'", "").replace(" ", "").replace("\t", "")
