"""Every version of the transaction APIs takes its request, and its answer can be written."""

import functools
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from tests.integration.test_transaction_coordinator import PLACES, node_at, producer
from tests.support.api_client import ApiClient, versions
from tests.support.transactional_client import TransactionalClient

NONE = ErrorCode.none
GROUP = "team"
_BATCH_VERSION = 4


async def test_a_transaction_by_every_version(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        for version in range(7):
            client = TransactionalClient(f"tx{version}", node)
            assert await client.find() is NONE
            assert await client.initialize(min(version, 6)) is NONE
            if version < _BATCH_VERSION:
                assert await client.add(PLACES, version) == [NONE, NONE]
            else:
                assert await add_by_node(node, client, min(version, 5)) == [NONE, NONE]
            assert await client.add_offsets(GROUP, min(version, 4)) is NONE
            code = await client.commit_offset(node, GROUP, PLACES[0], version, min(version, 5))
            assert code is NONE
            assert await client.end(min(version, 5)) is NONE
            await client.until("CompleteCommit")
        offsets = await node.node.groups.offsets(GROUP)
        assert offsets[PLACES[0]].offset == 6
    tried = {22: 7, 24: 6, 25: 5, 26: 6, 28: 6}
    assert {key: len(versions(key)) for key in tried} == tried


async def add_by_node(
    node: ApiClient, client: TransactionalClient, version: int
) -> list[ErrorCode]:
    """AddPartitionsToTxn as a node sends it, among others that fail."""

    def build(module: Any) -> Any:
        topic = entity(module, "AddPartitionsToTxnTopic", name="orders", partitions=[0, 1])
        missing = entity(module, "AddPartitionsToTxnTopic", name="nowhere", partitions=[0])

        def transaction(name: str, epoch: int, topics: list[Any], **how: bool) -> Any:
            return entity(
                module,
                "AddPartitionsToTxnTransaction",
                transactional_id=name,
                producer_id=client.producer[0],
                producer_epoch=epoch,
                topics=topics,
                **how,
            )

        epoch = client.producer[1]
        return entity(
            module,
            "AddPartitionsToTxnRequest",
            transactions=[
                transaction("unknown", 0, [topic], verify_only=True),
                transaction(client.transactional_id, epoch, [topic], verify_only=False),
                transaction(f"{client.transactional_id}?", epoch, [missing, topic]),
            ],
        )

    answer = await node.ask(24, version, build)
    assert answer.error_code is NONE
    found = {
        result.transactional_id: [
            ErrorCode(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        ]
        for result in answer.results_by_transaction
    }
    assert found["unknown"] == [ErrorCode.invalid_producer_id_mapping] * 2
    assert found[f"{client.transactional_id}?"] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.operation_not_attempted,
        ErrorCode.operation_not_attempted,
    ]
    return found[client.transactional_id]


async def test_a_coordinator_is_found_by_every_version(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        one: dict[str, Any] = {"key": "tx"}
        several: dict[str, Any] = {"coordinator_keys": ["tx", "other"]}
        for version in versions(10)[1:]:  # 0 knows groups only
            names = one if version < 4 else several
            asked = functools.partial(find, names)
            answer = await node.ask(10, version, asked)
            found = [answer] if version < 4 else answer.coordinators
            assert [place.error_code for place in found] == [NONE] * len(found)
            assert {place.port for place in found} == {node.node.advertised_port}
        for version in versions(66):
            answer = await node.ask(
                66, version, lambda m: entity(m, "ListTransactionsRequest", **ALL)
            )
            states = {
                state.transactional_id: state.transaction_state
                for state in answer.transaction_states
            }
            assert states == {client.transactional_id: "Empty"}


def find(names: dict[str, Any], module: Any) -> Any:
    return entity(module, "FindCoordinatorRequest", key_type=1, **names)


ALL: dict[str, Any] = {"state_filters": (), "producer_id_filters": ()}
