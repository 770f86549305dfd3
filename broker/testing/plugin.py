"""Fixtures of pytest, for `pytest_plugins` of a conftest.py. A test imports what it uses."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lakehead.broker.testing.broker_process import LakeheadBroker


@pytest.fixture(scope="session")
def lakehead_settings() -> dict[str, object]:
    """Settings of `lakehead_broker` by name, as for `lakehead start`: override in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def lakehead_broker(
    lakehead_settings: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[LakeheadBroker]":
    """One running broker for all tests of the session (under xdist, of each worker)."""
    from lakehead.broker.testing.broker_process import LakeheadBroker

    with LakeheadBroker(tmp_path_factory.mktemp("lakehead"), lakehead_settings) as broker:
        yield broker


@pytest.fixture
def lakehead_topic(
    lakehead_broker: "LakeheadBroker", request: pytest.FixtureRequest
) -> Iterator[str]:
    """The name of a new topic of the test's own with one partition, deleted after it."""
    number = request.session.stash.setdefault(_TOPICS, 0)
    request.session.stash[_TOPICS] = number + 1
    letters = (c if c.isascii() and c.isalnum() else "-" for c in request.node.name[:100])
    topic = lakehead_broker.create_topic(f"{''.join(letters)}-{number}")
    yield topic
    if lakehead_broker.is_running:
        lakehead_broker.delete_topic(topic)


@pytest.fixture
def lakehead_brokers(
    tmp_path_factory: pytest.TempPathFactory,
) -> "Iterator[Callable[..., LakeheadBroker]]":
    """Makes running brokers of the test's own, of given settings, which it may kill:
    `lakehead_brokers({"message.max.bytes": "2m"})`.
    """
    from lakehead.broker.testing.broker_process import LakeheadBroker

    with ExitStack() as stack:

        def make(settings: Mapping[str, object] | None = None) -> LakeheadBroker:
            folder = tmp_path_factory.mktemp("lakehead")
            return stack.enter_context(LakeheadBroker(folder, settings))

        yield make


_TOPICS = pytest.StashKey[int]()
