"""Each of many clients writes in each codec, and every one of them reads what each has written.

Keys, values, headers and timestamps come back as they were, null and empty ones too; of kcat's
keys and values, which are all that it can say of each record. Run by `make clients`, which fetches
what npm, Go and Maven have; a client that cannot be had is skipped by name.
"""

import os
from collections.abc import Iterator
from functools import cache

import pytest

from bench.process import ServerProcess
from tests.clients.programs import MAKERS, CannotBeHad
from tests.support.broker_process import HASTY, KEEPING, server_under_test
from tests.support.foreign_clients import CODECS, ITEMS, PIP_CLIENTS, ForeignClient, Item
from tests.support.traffic import create_topic

pytestmark = pytest.mark.skipif("CLIENTS" not in os.environ, reason="run by make clients")
NAMES = (*(client.name for client in PIP_CLIENTS), *MAKERS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("matrix")
    with server_under_test(folder, *HASTY, settings=KEEPING) as running:
        yield running


@cache
def client(name: str) -> ForeignClient | CannotBeHad:
    try:
        return next((c for c in PIP_CLIENTS if c.name == name), None) or MAKERS[name]()
    except CannotBeHad as error:
        return error


def bare(item: Item) -> Item:
    """What is left of a record when it was written by a client that is not exact."""
    return Item(item.key or b"", item.value or b"")


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", MAKERS)
def test_the_client_can_be_had(name: str) -> None:
    found = client(name)
    if isinstance(found, CannotBeHad):
        pytest.skip(f"{name} cannot be had: {found}")
    assert found.name == name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", NAMES)
def test_every_client_reads_what_one_has_written(
    server: ServerProcess, name: str, codec: str
) -> None:
    writer = client(name)
    if isinstance(writer, CannotBeHad) or codec not in writer.codecs:
        pytest.skip(f"{name} cannot write {codec} here")
    expected = ITEMS if writer.exact else tuple(map(bare, ITEMS))
    topic = f"{name}-{codec}"
    create_topic(server.bootstrap, topic, 1)
    writer.write(server.bootstrap, topic, codec)
    for reader in map(client, NAMES):
        if isinstance(reader, ForeignClient) and codec in reader.codecs:
            found = reader.read(server.bootstrap, topic)
            assert tuple(found if writer.exact else map(bare, found)) == expected, reader.name
