"""What a fetch in a session adds and forgets, as Kafka has it (KIP-227)."""

from tests.integration.test_node_protocol import running, with_topic
from tests.support.wire import Batch


async def test_what_is_added_and_forgotten_at_once_is_forgotten() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, session=(0, 0), wait_ms=0)
        session = (await client.receive()).session_id
        client.produce(Batch().encode(), partition=1)
        await client.produced()
        client.fetch({1: 0}, session=(session, 1), wait_ms=0, forgotten=[1])
        assert await client.fetched() == {}
        client.fetch({1: 0}, session=(session, 2), wait_ms=0)
        assert list(await client.fetched()) == [1]


async def test_a_session_of_which_everything_is_forgotten_is_over() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, session=(0, 0), wait_ms=0)
        session = (await client.receive()).session_id
        client.fetch({}, session=(session, 1), wait_ms=0, forgotten=[0])
        answer = await client.receive()
        assert (answer.error_code, answer.session_id) == (0, 0)


async def test_a_session_may_begin_with_nothing() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({}, session=(0, 0), wait_ms=0)
        session = (await client.receive()).session_id
        assert session > 0
        client.fetch({0: 0}, session=(session, 1), wait_ms=0)
        assert list(await client.fetched()) == [0]
