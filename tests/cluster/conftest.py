"""Real etcd, real nodes. Where there is no etcd these tests are skipped, and say so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import Etcd, running_etcd


@pytest.fixture
def etcd_of_three(tmp_path: Path) -> Iterator[Etcd]:
    """Three members: one may be lost."""
    with running_etcd(tmp_path / "etcd", members=3) as etcd:
        yield etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One member, which is enough where nothing happens to it."""
    with running_etcd(tmp_path / "etcd") as etcd:
        yield etcd
