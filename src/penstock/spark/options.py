"""The options of a query by name in any case, with a method to read each kind of value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar, overload

import msgspec

from penstock.spark.errors import OptionError

_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)?")
_FLAGS: Final = {"true": True, "false": False}
_T = TypeVar("_T")


class SparkOptions(Mapping[str, str]):
    """Spark's options, with names in any case. Errors spell a name as the caller does."""

    __slots__ = ("_values",)

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bootstrap(self) -> str:
        """The brokers: ``kafka.bootstrap.servers``, or ``bootstrap.servers``."""
        found = self.get("kafka.bootstrap.servers") or self.get("bootstrap.servers") or ""
        if not found.strip():
            raise OptionError('Set the option kafka.bootstrap.servers to the brokers, for example "127.0.0.1:9092"')
        return found.strip()

    @overload
    def integer(self, name: str, default: int, *, at_least: int = 0) -> int: ...

    @overload
    def integer(self, name: str, default: None = None, *, at_least: int = 0) -> int | None: ...

    def integer(self, name: str, default: int | None = None, *, at_least: int = 0) -> int | None:
        """An integer of at least ``at_least``."""
        text = self.get(name)
        if text is None:
            return default
        try:
            number = int(text.strip())
        except ValueError:
            raise OptionError(f"The option {name} must be an integer, not {text!r}") from None
        if number < at_least:
            raise OptionError(f"The option {name} must be {at_least} or more, not {number}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false, in any case."""
        return self.choice(name, _FLAGS, default=default)

    def choice(self, name: str, choices: Mapping[str, _T], *, default: _T) -> _T:
        """One of several words, in any case."""
        text = self.get(name)
        if text is None:
            return default
        if text.strip().lower() not in choices:
            wanted = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
            raise OptionError(f"The option {name} must be {wanted}, not {text!r}")
        return choices[text.strip().lower()]

    def json(self, name: str, kind: type[_T], example: str) -> _T:
        """JSON of this type."""
        try:
            return msgspec.json.decode(self[name], type=kind)
        except msgspec.DecodeError:
            raise OptionError(f"The option {name} must be JSON such as {example}, not {self[name]!r}") from None

    def refuse(self, unsupported: Mapping[str, str]) -> None:
        """Raise OptionError, with the reason, for an option that is not supported, and for TLS or credentials that are not valid."""
        from penstock.spark.security import security_of

        for name, reason in unsupported.items():
            if name in self:
                raise OptionError(f"The option {name} is not supported: {reason}")
        security_of(self)

    def duration_ms(self, name: str, default_ms: int) -> int:
        """A duration as in Spark: ``15m``, ``30s``, ``500ms``; a number without a unit is milliseconds."""
        text = self.get(name)
        if text is None:
            return default_ms
        matched = _DURATION.fullmatch(text.strip().lower())
        unit_ms = _UNITS_MS.get(matched[2] or "ms") if matched else None
        if matched is None or unit_ms is None:
            raise OptionError(f"The option {name} must be a duration such as 30s, 15m or 1h, not {text!r}")
        return int(int(matched[1]) * unit_ms)


def options_of(options: Mapping[str, str]) -> SparkOptions:
    """The options as :class:`SparkOptions`."""
    return options if isinstance(options, SparkOptions) else SparkOptions(options)
