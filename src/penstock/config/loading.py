"""Merges the layers (defaults < TOML < environment < flags), and reports all problems at once."""

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from penstock.address import OFF, Address, parse_address
from penstock.config.named import check_name, named_path, problems_of, take_named, with_named
from penstock.config.sources import (
    ConfigError,
    Found,
    Layer,
    read_environment,
    read_flags,
    read_toml,
)
from penstock.errors import PenstockError
from penstock.settings import NAMED_SECTIONS, SECTIONS, TOPIC_DEFAULTS, WANTED, Settings, SettingSource, SourceKind

_UNEXPECTED = "got {}, expected {}"
"""Follows the path of the setting."""


def load(
    config_file: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """The settings; ConfigError with a sentence for each problem. Flags are named by the path that they set: ``listeners.kafka``."""
    layers: list[Layer] = []
    if config_file is not None:
        layers.append(read_toml(Path(config_file)))
    layers += [read_environment(environment or {}), read_flags(flags or {})]

    problems: list[str] = []
    # A mistake is reported even if another layer overrides the value, since it would take effect without that layer.
    values: dict[str, object] = {}
    sources: dict[str, SettingSource] = {}
    for layer in layers:
        for path, found in layer.items():
            try:
                value = _read(path, found)
                if value != {}:
                    values[path] = value
                    sources[path] = found.source
            except ValueError as error:
                problems.append(f"{path}: {error} ({found.source})")
    if problems:
        raise ConfigError(problems)
    _derive_http_listener(values, sources)
    settings = _assemble(values, sources)
    _check_relations(settings)
    return settings


def field_types(section: type[msgspec.Struct]) -> dict[str, object]:
    """The annotated type of each key of a section."""
    return get_type_hints(section, include_extras=True)


def show(value: object) -> str:
    """A value as it is written in TOML."""
    if value is None:
        return f'"{OFF}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return '"' + str(value.value if isinstance(value, Enum) else value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(path: str, found: Found) -> object:
    section, _, key = path.partition(".")
    if section == TOPIC_DEFAULTS and key:
        return _topic_config(key, found.value)
    if section not in SECTIONS and section != TOPIC_DEFAULTS:
        raise ValueError(_unknown(section, "", [*SECTIONS, TOPIC_DEFAULTS]))
    if not key:
        if found.value == {}:
            return found.value
        raise ValueError(_UNEXPECTED.format(_shown(found.value), f"a table with keys, such as [{section}]"))
    named = named_path(path)
    if named is None:
        types, prefix = field_types(SECTIONS[section]), f"{section}."
    else:
        check_name(named)
        types, prefix, key = field_types(NAMED_SECTIONS[section][0]), f"{section}.{named.name}.", named.key
    if key not in types:
        raise ValueError(_unknown(key, prefix, types))
    return _convert(types[key], found)


def _convert(annotated: object, found: Found) -> object:
    kind = get_args(annotated)[0] if get_origin(annotated) is Annotated else annotated
    value = found.value
    if kind == Address | None:
        return _address(value)
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
        value = value.lower()
    # In the environment and on the command line, all values are text.
    is_text = found.source.kind in (SourceKind.ENVIRONMENT, SourceKind.FLAG) and isinstance(value, str)
    if kind is str and not isinstance(value, str):
        value = str(value) if isinstance(value, Path) else value
    try:
        return msgspec.convert(value, annotated, strict=not is_text or kind is str)
    except msgspec.ValidationError as error:
        described = next((meta.extra[WANTED] for meta in get_args(annotated)[1:] if meta.extra), None)
        raise ValueError(_UNEXPECTED.format(_shown(found.value), described or _wanted(kind, error))) from None


def _address(value: object) -> Address | None:
    if isinstance(value, Address) or value is None:
        return value
    if isinstance(value, str):
        return None if value.strip().lower() in (OFF, "") else parse_address(value)
    raise ValueError(_UNEXPECTED.format(_shown(value), "HOST:PORT or off"))


def _wanted(kind: object, error: Exception) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(str(member.value) for member in kind)
    names = {int: "an integer", bool: "true or false", str: "a string"}
    text = str(error)
    # The text of the library has the limit: "Expected `int` >= 1".
    bound = text.partition("` ")[2].partition(" - at")[0] if text.startswith("Expected `") else ""
    if kind is str and "length" in bound:
        return "a non-empty string"
    wanted = names.get(kind, str(kind)) if isinstance(kind, type) else str(kind)
    return wanted if not bound.startswith((">", "<")) else f"{wanted} {bound}"


def _shown(value: object) -> str:
    shown = repr(value)
    kinds = {str: "the string ", bool: "", int: "", float: "", list: "the list ", dict: "the table "}
    return kinds.get(type(value), "") + (shown if len(shown) <= 60 else shown[:57] + "...")


def _unknown(name: str, prefix: str, known: Iterable[str]) -> str:
    # Imported only after a mistake.
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"unknown; did you mean {prefix}{close[0]}?" if close else f"unknown; available: {', '.join(sorted(known))}"


def _topic_config(key: str, value: object) -> str:
    text = _topic_config_text(value)
    if text is None:
        wanted = "a string, a number, true or false, or a list of strings"
        raise ValueError(_UNEXPECTED.format(_shown(value), wanted))
    # Imported only if the configuration sets a topic default.
    from penstock.core.topics.config_table import TOPIC_CONFIGS

    definition = TOPIC_CONFIGS.get(key)
    if definition is None:
        raise ValueError(_unknown(key, f"{TOPIC_DEFAULTS}.", TOPIC_CONFIGS))
    try:
        return definition.check(text)
    except PenstockError as error:
        raise ValueError(_UNEXPECTED.format(_shown(value), definition.accepts())) from error


def _topic_config_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return None


def _check_relations(settings: Settings) -> None:
    if problems := list(problems_of(settings)):
        raise ConfigError(problems)
    low, high = settings.groups.session_timeout_ms_min, settings.groups.session_timeout_ms_max
    if low > high:
        above = f"{low} is above groups.session_timeout_ms_max, which is {high}; change one of them"
        raise ConfigError([f"groups.session_timeout_ms_min: {above}"])
    if settings.topic_defaults:
        from penstock.core.topics.config import check_configs

        try:
            check_configs(settings.topic_defaults, {})
        except PenstockError as error:
            raise ConfigError([f"{TOPIC_DEFAULTS}: {error.text}"]) from error


def _derive_http_listener(values: dict[str, object], sources: dict[str, SettingSource]) -> None:
    """Set listeners.http from http.host and http.port, if it is not set itself."""
    given = [path for path in ("http.host", "http.port") if path in values]
    if not given or "listeners.http" in values:
        return
    defaults = Settings().http
    host, port = values.get("http.host", defaults.host), values.get("http.port", defaults.port)
    assert isinstance(host, str)
    assert isinstance(port, int)
    values["listeners.http"] = Address(host, port)
    sources["listeners.http"] = sources[given[-1]]


def _assemble(values: Mapping[str, object], sources: Mapping[str, SettingSource]) -> Settings:
    by_section: dict[str, dict[str, object]] = {}
    plain = dict(values)
    named = take_named(plain)
    for path, value in plain.items():
        section, _, key = path.partition(".")
        if key:
            by_section.setdefault(section, {})[key] = value
    topic_defaults = {key: str(value) for key, value in by_section.pop(TOPIC_DEFAULTS, {}).items()}
    sections = {name: SECTIONS[name](**chosen) for name, chosen in by_section.items()}
    settings = Settings(**sections, topic_defaults=topic_defaults, sources=dict(sources))  # type: ignore[arg-type]
    return with_named(settings, named)
