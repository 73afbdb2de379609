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
"""Relative names in the order of the certificate; each has one or more attributes: the object identifier and the value."""

_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "1.2.840.113549.1.9.1": "emailAddress",
    "2.5.4.5": "serialNumber",
}
"""The names of RFC 2253, and two that are common; other attributes appear with their object identifiers."""
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\$(\d)")


def distinguished_name(subject: Subject) -> str:
    """The subject as RFC 2253 writes it: ``CN=anna,OU=Ops,O=Acme``."""
    return ",".join(
        "+".join(f"{_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in subject[::-1]
    )


def subject_of(certificate: bytes) -> Subject:
    """The subject of a certificate in DER form."""
    from cryptography import x509

    names = x509.load_der_x509_certificate(certificate).subject.rdns
    return [[(each.oid.dotted_string, str(each.value)) for each in name] for name in names]


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value).replace("\0", "\\00")
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    if value.endswith(" ") and len(value) > 1:
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
        self.name_of_certificate: Final = lru_cache(maxsize=1024)(self._name_of_certificate)
        """The name for a certificate in DER form; ValueError if there is none."""

    def name_of(self, subject: str) -> str:
        """The name for a subject that is written as RFC 2253 does; ValueError if no rule matches or the name is empty."""
        for rule in self._rules:
            if name := rule.apply(subject):
                return name
        raise ValueError(f"No rule in tls.principal_rules makes a name of the certificate's subject {subject!r}")

    def _name_of_certificate(self, certificate: bytes) -> str:
        return self.name_of(distinguished_name(subject_of(certificate)))


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
