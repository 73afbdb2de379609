"""Raw connections to a real broker, and topics of each test's own."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from penstock.testing.broker import BrokerThread
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_wire import RawClient, create

numbers = itertools.count()


@pytest.fixture
def connect(penstock_broker: BrokerThread) -> Iterator[Callable[..., RawClient]]:
    """Open a connection; all are closed in the end."""
    opened: list[RawClient] = []

    def connect(bootstrap: str | None = None, **options: int) -> RawClient:
        opened.append(RawClient(bootstrap or penstock_broker.bootstrap, **options))
        return opened[-1]

    yield connect
    for client in opened:
        client.socket.close()


def make_topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    """A fresh topic; configs with underscores for dots."""
    name = f"raw-{next(numbers)}"
    with RawClient(bootstrap) as client:
        [answer] = client.ask(ApiKey.CREATE_TOPICS, create(name, partitions, **configs), 7).topics
    assert answer.error_code == 0, answer
    return name


@pytest.fixture
def topic(penstock_broker: BrokerThread) -> str:
    """A fresh topic of two partitions."""
    return make_topic(penstock_broker.bootstrap, 2)
