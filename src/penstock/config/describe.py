"""Settings for people: a flat list with descriptions and sources, the example file, and the table in the documentation."""

from collections.abc import Iterator
from enum import Enum
from textwrap import wrap
from typing import Annotated, Final, NamedTuple, get_args, get_origin

import msgspec

from penstock.address import OFF
from penstock.config.loading import field_types, show
from penstock.settings import NAMED_SECTIONS, SECTIONS, TOPIC_DEFAULTS, Settings, SettingSource

WIDTH: Final = 100
_HEAD: Final = """\
# Penstock's configuration: every setting with its default. Uncomment the settings that you change.
# The environment (PENSTOCK__LOG__FLUSH=os) and the flags of penstock serve override this file.
# "penstock config show --config FILE" shows the effective values and their sources.
"""
_NAMED: Final = """\
# One more listener for the Kafka protocol; its name ("outside") is free. A client gets the addresses of the listener
# that it connected to.
#   [listeners.outside]
#   address = "0.0.0.0:9094"
#   advertised = "broker.example.com:9094"

# What differs from [tls] for one listener: kafka, http, tcp, grpc, peer, or the name of a further one.
#   [tls.http]
#   enabled = false

"""
_TOPIC_DEFAULTS: Final = """\
# Topic configs with Kafka's names, for every topic that does not set its own.
[topic_defaults]
# "retention.ms" = 604800000
# "cleanup.policy" = "delete"
"""

Plain = str | int | bool


class Described(NamedTuple):
    """One setting, with value and default as in JSON."""

    path: str
    plain: Plain
    default: Plain | None
    source: SettingSource
    description: str


def describe(settings: Settings) -> Iterator[Described]:
    """Every setting in the order of the sections; those of single listeners and topic defaults that are set come last."""
    defaults = Settings()
    for section, kind in SECTIONS.items():
        for key, annotated in field_types(kind).items():
            path = f"{section}.{key}"
            value, default = getattr(getattr(settings, section), key), getattr(getattr(defaults, section), key)
            yield Described(path, _plain(value), _plain(default), settings.source_of(path), _description(annotated))
    yield from _describe_named(settings)
    for key, text in settings.topic_defaults.items():
        path = f"{TOPIC_DEFAULTS}.{key}"
        yield Described(path, text, None, settings.source_of(path), "a topic config with Kafka's name")


def _describe_named(settings: Settings) -> Iterator[Described]:
    """The settings of ``[listeners.NAME]`` and ``[tls.NAME]`` that are set."""
    for section, (kind, field) in NAMED_SECTIONS.items():
        for name, named in getattr(settings, field).items():
            for key, annotated in field_types(kind).items():
                path = f"{section}.{name}.{key}"
                if path in settings.sources:
                    value, description = _plain(getattr(named, key)), _description(annotated)
                    yield Described(path, value, None, settings.source_of(path), description)


def example_toml() -> str:
    """A file with every setting commented out."""
    parts = [_HEAD]
    defaults = Settings()
    for section, kind in SECTIONS.items():
        parts.append("\n".join(["", *_comment(kind.__doc__ or ""), f"[{section}]", ""]))
        for key, annotated in field_types(kind).items():
            value = getattr(getattr(defaults, section), key)
            parts.append(
                "\n".join([*_comment(_description(annotated) + _choices(annotated)), f"# {key} = {show(value)}", ""])
            )
    parts.append("\n" + _NAMED + _TOPIC_DEFAULTS)
    return "".join(parts)


def reference() -> str:
    """The Markdown tables of all settings in ``docs/configuration.md``; a test keeps the two equal."""
    lines: list[str] = []
    for section, kind in SECTIONS.items():
        lines += _table(section, kind)
        if section in NAMED_SECTIONS and (named := NAMED_SECTIONS[section][0]) is not kind:
            lines += _table(f"{section}.NAME", named)
    return "\n".join(lines)


def _table(section: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    yield from (f"### [{section}]", "", (kind.__doc__ or "").strip(), "")
    yield from ("| setting | default | meaning |", "|---|---|---|")
    defaults = kind()
    for key, annotated in field_types(kind).items():
        meaning = _description(annotated) + _choices(annotated)
        yield f"| `{section}.{key}` | `{show(getattr(defaults, key))}` | {meaning} |"
    yield ""


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text.strip(), WIDTH)]


def _choices(annotated: object) -> str:
    kind = get_args(annotated)[0] if get_origin(annotated) is Annotated else annotated
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f" ({', '.join(str(member.value) for member in kind)})"
    return ""


def _description(annotated: object) -> str:
    for meta in getattr(annotated, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    return ""


def _plain(value: object) -> Plain:
    if value is None:
        return OFF
    if isinstance(value, Enum):
        return str(value.value)
    return value if isinstance(value, str | int) else str(value)
