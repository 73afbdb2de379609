"""From the subject of a client certificate to the name of a principal, by the rules of Kafka's ``ssl.principal.mapping.rules``.

The subject is written as RFC 2253 does: the last relative name first, special characters escaped. A rule sees the whole subject, so a part
of it cannot be mistaken for another one.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

Subject = Sequence[Sequence[tuple[str, str]]]
"""Relative names in the order of the certificate; each has one or more attributes with their values."""

_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""The names that RFC 2253 abbreviates; others appear as OpenSSL calls them."""
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\$(\d)")


def distinguished_name(subject: Subject) -> str:
    """The subject as RFC 2253 writes it: ``CN=anna,OU=Ops,O=Acme``."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in subject[::-1]
    )


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value).replace("\0", "\\00")
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    if text.endswith(" ") and len(text) > 1:
        text = f"{text[:-1]}\\ "
    return text


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what the whole subject must match, and what the name is then. Without a pattern, it is the subject."""

    pattern: re.Pattern[str] | None = None
    name: str = ""
    change: Callable[[str], str] | None = None

    def apply(self, subject: str) -> str | None:
        """The name; None if the rule does not match."""
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = _GROUP.sub(lambda group: found[int(group[1])] or "", self.name)
        return name if self.change is None else self.change(name)


class PrincipalRules:
    """The rules of one listener; the first that matches decides."""

    def __init__(self, text: str) -> None:
        """``text`` is a list of ``DEFAULT`` and ``RULE:pattern/replacement/[L|U]``. ValueError if it is not."""
        self._rules: Final = tuple(_parse(text))
        self.name_of: Final = lru_cache(maxsize=1024)(self._name_of)
        """The name for a subject that is written as RFC 2253 does; ValueError if no rule matches or the name is empty."""

    def _name_of(self, subject: str) -> str:
        for rule in self._rules:
            if name := rule.apply(subject):
                return name
        raise ValueError(f"no rule in tls.principal_rules makes a name of the certificate's subject {subject!r}")

    def name_of_subject(self, subject: Subject) -> str:
        """The name for the subject of a certificate."""
        return self.name_of(distinguished_name(subject))


def _parse(text: str) -> Iterator[Rule]:
    position, text = 0, text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(
                f"{text[position:]!r} is not a rule: write DEFAULT or RULE:pattern/replacement/, with L or U at its end"
            )
        position = found.end()
        yield Rule() if found[1] else _rule(found[2], found[3], found[4])


def _rule(pattern: str, name: str, change: str) -> Rule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    highest = max((int(group) for group in _GROUP.findall(name)), default=0)
    if highest > compiled.groups:
        raise ValueError(f"{name!r} uses ${highest}, but the pattern {pattern!r} has {compiled.groups} groups")
    return Rule(compiled, name.replace("\\/", "/"), {"L": str.lower, "U": str.upper}.get(change))
