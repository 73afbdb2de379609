from collections.abc import Iterator

import pytest

from tests.unit.core.queues.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A node with one topic of one partition."""
    made = World().boot()
    made.create()
    yield made
    made.close()
