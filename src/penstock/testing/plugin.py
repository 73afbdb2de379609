"""The pytest plugin: a real broker for a test suite, in the same process, on a free port.

Pytest loads this module in every run of every project that has Penstock installed, so nothing heavy is imported before a
fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.broker import BrokerFactory, BrokerThread
    from penstock.testing.secure import SecureBroker


@pytest.fixture(scope="session")
def penstock_broker_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFactory]:
    """Start as many brokers as a test needs: ``penstock_broker_factory({"topics.auto_create": False})``.

    All of them are stopped at the end of the run.
    """
    from penstock.testing.broker import BrokerFactory

    factory = BrokerFactory(lambda: tmp_path_factory.mktemp("penstock"))
    yield factory
    factory.stop_all()


@pytest.fixture(scope="session")
def penstock_broker(penstock_broker_factory: BrokerFactory) -> BrokerThread:
    """One broker for the whole run: use a separate topic name in each test."""
    return penstock_broker_factory()


@pytest.fixture(scope="session")
def penstock_secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """One broker for the whole run that requires TLS and a login.

    ``bootstrap``, ``ca_file``, ``user`` and ``password_file`` are for any client; ``librdkafka_config()`` is for those of librdkafka,
    ``security`` for :mod:`penstock.client`.
    """
    from penstock.testing.secure import SecureBroker

    broker = SecureBroker(tmp_path_factory.mktemp("penstock-secure")).start()
    yield broker
    broker.stop()
