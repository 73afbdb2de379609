"""The names of principals from certificates: Kafka's rules, on a subject in which no part can be mistaken for another."""

import pytest

from penstock.cli.issuing import Wanted, issue, new_authority
from penstock.core.security.certificates import PrincipalRules, distinguished_name, subject_of

ANNA = "CN=anna,OU=Ops,O=Acme,C=DE"


def test_the_last_part_of_a_subject_comes_first() -> None:
    subject = [[("2.5.4.6", "DE")], [("2.5.4.10", "Acme")], [("2.5.4.3", "anna"), ("0.9.2342.19200300.100.1.1", "7")]]
    assert distinguished_name(subject) == "CN=anna+UID=7,O=Acme,C=DE"


def test_attributes_without_a_short_name_have_their_identifier() -> None:
    assert distinguished_name([[("1.2.3.4", "x")], [("1.2.840.113549.1.9.1", "a@b")]]) == "emailAddress=a@b,1.2.3.4=x"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,CN=admin", r"a\,CN=admin"),
        ("a+b", r"a\+b"),
        (' a"<>;\\ ', r"\ a\"\<\>\;\\\ "),
        ("#a", r"\#a"),
        (" ", r"\ "),
        ("a\0b", r"a\00b"),
        ("ä#", "ä#"),
    ],
)
def test_special_characters_are_escaped_so_that_a_value_cannot_look_like_a_part(value: str, written: str) -> None:
    assert distinguished_name([[("2.5.4.3", value)]]) == f"CN={written}"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", ANNA, ANNA),
        ("", ANNA, ANNA),
        ("RULE:^CN=(.*?),OU=Ops.*$/$1/", ANNA, "anna"),
        ("RULE:CN=(.*?),.*/$1@$1/U", ANNA, "ANNA@ANNA"),
        ("RULE:CN=(.*?),.*/$1/L", "CN=ANNA,O=Acme", "anna"),
        ("RULE:CN=x.*/wrong/, RULE:CN=(a.*?),.*/$1/ , DEFAULT", ANNA, "anna"),
        ("RULE:CN=x.*/wrong/,DEFAULT", ANNA, ANNA),
        (r"RULE:CN=(.*)\/(.*),O=.*/$2\/$1/", "CN=a/b,O=Acme", "b/a"),
        ("RULE:CN=a{1,2}/one, two/", "CN=aa", "one, two"),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, subject: str, name: str) -> None:
    assert PrincipalRules(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:CN=anna/anna/",  # a part of the subject is not enough
        "RULE:CN=(b.*)/$1/",
        "RULE:CN=anna(x?).*/$1/",  # an empty name is none
    ],
)
def test_a_subject_that_no_rule_names_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="No rule"):
        PrincipalRules(rules).name_of(ANNA)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("default", "is not a rule"),
        ("RULE:a/b", "is not a rule"),
        ("DEFAULT RULE:a/b/", "is not a rule"),
        ("RULE:a/b/X", "is not a rule"),
        ("RULE:(/b/", "is not a regular expression"),
        ("RULE:(a)/$2/", "uses \\$2"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(rules: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PrincipalRules(rules)


def test_the_name_of_a_certificate_is_made_of_its_subject() -> None:
    issued = issue(new_authority("ca"), Wanted("anna, the first", is_client=True))
    from cryptography.hazmat.primitives.serialization import Encoding

    der = issued.certificate.public_bytes(Encoding.DER)
    assert subject_of(der) == [[("2.5.4.3", "anna, the first")]]
    assert PrincipalRules("DEFAULT").name_of_certificate(der) == r"CN=anna\, the first"
