"""One broker for all tests of connectors that do not end it."""

from collections.abc import Iterator

import pytest

from tests.support.broker_process import KEEPING, BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = tuple(text for name, value in KEEPING.items() for text in (f"--{name}", value))
    broker = BrokerProcess(tmp_path_factory.mktemp("connectors"), flags)
    broker.start()
    yield broker
    broker.kill()
