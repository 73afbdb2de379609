"""Lakes of every format in a test's own folder."""

import pytest

from penstock.spark.connections import drop_all
from penstock.spark.lake.formats import LakeFormat
from tests.unit.spark.lake.kit import Archive


@pytest.fixture(params=list(LakeFormat))
def archive(request, tmp_path):
    return Archive(tmp_path / "lake", request.param)


@pytest.fixture
def parquet(tmp_path):
    return Archive(tmp_path / "lake", LakeFormat.PARQUET)


@pytest.fixture
def bare_broker(penstock_broker_factory):
    """With no topics but the test's own."""
    broker = penstock_broker_factory()
    yield broker
    drop_all()
    broker.stop()
