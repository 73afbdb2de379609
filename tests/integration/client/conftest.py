"""A cluster that is the session's broker, and topics of each test's own."""

import itertools

import pytest

from penstock.client import Admin, Cluster

numbers = itertools.count()


@pytest.fixture
def cluster(penstock_broker):
    with Cluster(penstock_broker.bootstrap, timeout_ms=20_000) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster, request):
    """A fresh topic with two partitions; ``@pytest.mark.parametrize("topic", [5], indirect=True)`` gives it five."""
    name = f"client-{next(numbers)}"
    Admin(cluster).create_topic(name, partitions=getattr(request, "param", 2))
    return name


@pytest.fixture
def group() -> str:
    return f"client-group-{next(numbers)}"
