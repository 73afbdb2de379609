"""Where the commit comes from that /v1/version tells."""

from importlib import metadata
from typing import Never

import pytest

from penstock.gateways.http.v1 import status


class Distribution:
    def __init__(self, note: str | None) -> None:
        self._note = note

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._note


@pytest.mark.parametrize(
    ("note", "commit"),
    [
        ('{"url": "https://example.org/penstock", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}', "abc123"),
        ('{"url": "file:///src", "dir_info": {"editable": true}}', "unknown"),
        ("not json", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_commit_is_what_the_installer_noted(monkeypatch, note, commit) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution(note))
    assert status.commit.__wrapped__() == commit


def test_a_package_that_is_not_installed_has_no_commit(monkeypatch) -> None:
    def absent(name: str) -> Never:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert status.commit.__wrapped__() == "unknown"
