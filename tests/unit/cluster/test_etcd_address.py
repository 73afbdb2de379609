"""How etcd's addresses and files are given, and what is said of those that cannot be used."""

from pathlib import Path

import pytest

from penstock.address import Address
from penstock.cluster.etcd_address import parse_endpoints, read_tls
from tests.support.etcd import make_certificates


@pytest.mark.parametrize(
    ("text", "addresses", "uses_tls"),
    [
        ("one:1", [("one", 1)], False),
        ("one", [("one", 2379)], False),
        ("one:1, two:2,", [("one", 1), ("two", 2)], False),
        ("http://one:1/,http://two:2", [("one", 1), ("two", 2)], False),
        ("https://one:1,https://two", [("one", 1), ("two", 2379)], True),
        ("https://[::1]:5", [("::1", 5)], True),
    ],
)
def test_addresses_are_read(text: str, addresses: list[tuple[str, int]], uses_tls: bool) -> None:
    assert parse_endpoints(text) == ([Address(*each) for each in addresses], uses_tls)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "HOST:PORT"),
        (" , ", "HOST:PORT"),
        ("tcp://one:1", "https://HOST:PORT"),
        ("http://one:1,https://two:2", "use the same for all"),
        ("one:port", "port"),
    ],
)
def test_what_is_no_address_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_endpoints(text)


def test_files_are_read_and_none_are_needed_without_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    files = str(made.ca), str(made.certificate), str(made.key)
    assert read_tls(*files, uses_tls=True) == made.tls()
    assert read_tls("", "", "", uses_tls=False) is None
    with pytest.raises(ValueError, match="https://"):
        read_tls(*files, uses_tls=False)


def test_files_that_cannot_be_used_are_told_by_name(tmp_path: Path) -> None:
    ours, others = make_certificates(tmp_path / "a"), make_certificates(tmp_path / "b")
    ca, certificate, key = str(ours.ca), str(ours.certificate), str(ours.key)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no certificate")
    with pytest.raises(ValueError, match="belong together"):
        read_tls(ca, certificate, "", uses_tls=True)
    with pytest.raises(ValueError, match=r"garbage.pem.*--etcd-ca"):
        read_tls(str(garbage), "", "", uses_tls=True)
    with pytest.raises(ValueError, match=r"^--etcd-ca .*absent.pem cannot be read: no such file"):
        read_tls(str(tmp_path / "absent.pem"), "", "", uses_tls=True)
    with pytest.raises(ValueError, match=r"--etcd-cert and --etcd-key"):
        read_tls(ca, certificate, str(others.key), uses_tls=True)
    with pytest.raises(ValueError, match=r"garbage.pem.*--etcd-cert"):
        read_tls(ca, str(garbage), key, uses_tls=True)
