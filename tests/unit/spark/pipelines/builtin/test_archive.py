"""What ``archive`` refuses before it asks anybody."""

import pytest

from penstock.spark.pipelines.builtin.archive import ArchiveArguments, _checked
from penstock.spark.pipelines.errors import PipelineUsageError


def test_the_options_of_a_lake_are_those_of_its_catalog_too() -> None:
    given = ArchiveArguments(topics=("orders",), to="/lake", catalog=("uri = http://catalog:8181",))
    assert _checked(given) == {"path": "file:///lake", "lake": "parquet", "catalog.uri": "http://catalog:8181"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"local_retention": "1h"}, "requires --tier"),
        ({"tier": True, "local_retention": "soon"}, '--local-retention: "soon" is not a duration'),
        ({"catalog": ("uri",)}, "--catalog: uri is not of the form NAME=VALUE"),
        ({"catalog": ("uri=x",), "tier": True}, "readers of a tier do not know --catalog"),
    ],
)
def test_what_cannot_be_is_refused(more, told) -> None:
    with pytest.raises(PipelineUsageError, match=told):
        _checked(ArchiveArguments(topics=("orders",), to="/lake", **more))
