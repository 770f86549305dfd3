"""Offsets that are committed in transactions: seen when the transaction is, and never otherwise."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.protocol.messages import entity
from tests.integration.test_transaction_coordinator import node_at, producer
from tests.support.api_client import ApiClient

NONE = ErrorCode.none
GROUP, PLACE, OTHER = "team", ("orders", 0), ("orders", 1)


async def fetch(node: ApiClient, *, require_stable: bool) -> tuple[int, ErrorCode]:
    """OffsetFetch of PLACE."""

    def build(module: Any) -> Any:
        topic = entity(
            module, "OffsetFetchRequestTopics", name=PLACE[0], partition_indexes=[PLACE[1]]
        )
        group = entity(module, "OffsetFetchRequestGroup", group_id=GROUP, topics=[topic])
        return entity(module, "OffsetFetchRequest", groups=[group], require_stable=require_stable)

    found = (await node.ask(9, 8, build)).groups[0].topics[0].partitions[0]
    return found.committed_offset, ErrorCode(found.error_code)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
async def test_an_offset_counts_when_its_transaction_is_committed(
    tmp_path: Path, is_commit: bool, is_restarted: bool
) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        await node.node.groups.partition_for(GROUP)
        await node.node.groups.loaded(GROUP)
        await node.node.groups.commit(GROUP, {PLACE: CommittedOffset(offset=3)})
        assert await client.add_offsets(GROUP) is NONE
        assert await client.commit_offset(node, GROUP, PLACE, 5) is NONE
        assert await fetch(node, require_stable=False) == (3, NONE)
        assert await fetch(node, require_stable=True) == (-1, ErrorCode.unstable_offset_commit)
        if not is_restarted:
            assert await client.end(is_commit=is_commit) is NONE
            await client.until("CompleteCommit", "CompleteAbort")
            assert await fetch(node, require_stable=True) == (5 if is_commit else 3, NONE)
    async with node_at(tmp_path) as node:
        if is_restarted:
            client.move(node)
            assert await fetch(node, require_stable=True) == (-1, ErrorCode.unstable_offset_commit)
            assert await client.end(is_commit=is_commit) is NONE
            await client.until("CompleteCommit", "CompleteAbort")
        assert await fetch(node, require_stable=True) == (5 if is_commit else 3, NONE)


async def test_a_plain_commit_after_it_stands(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        assert await client.add_offsets(GROUP) is NONE
        assert await client.commit_offset(node, GROUP, PLACE, 5) is NONE
        assert await client.commit_offset(node, GROUP, OTHER, 6) is NONE
        await node.node.groups.commit(GROUP, {PLACE: CommittedOffset(offset=9)})
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        offsets = await node.node.groups.offsets(GROUP)
        assert {where: found.offset for where, found in offsets.items()} == {PLACE: 9, OTHER: 6}
    async with node_at(tmp_path) as node:
        again = await node.node.groups.offsets(GROUP)
        assert again == offsets


async def test_a_group_that_is_not_in_the_transaction_takes_no_offsets(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        refused = ErrorCode.invalid_txn_state
        assert await client.commit_offset(node, GROUP, PLACE, 5) is refused
        assert await client.add([PLACE]) == [NONE]
        assert await client.commit_offset(node, GROUP, PLACE, 5) is refused
        assert (
            await client.commit_offset(node, GROUP, PLACE, 5, 4) is ErrorCode.transaction_abortable
        )
        assert await client.commit_offset(node, GROUP, PLACE, 5, 5) is NONE  # adds it (KIP-890)
        assert await client.commit_offset(node, GROUP, ("nowhere", 0), 5) is (
            ErrorCode.unknown_topic_or_partition
        )
        assert await fetch(node, require_stable=True) == (-1, ErrorCode.unstable_offset_commit)


async def test_a_producer_that_is_fenced_commits_nothing(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        old = await producer(node)
        assert await old.add_offsets(GROUP) is NONE
        assert await old.commit_offset(node, GROUP, PLACE, 5) is NONE
        new = await producer(node)  # aborts what is open
        assert await new.add_offsets(GROUP) is NONE
        assert await new.commit_offset(node, GROUP, PLACE, 7) is NONE
        fenced = ErrorCode.invalid_producer_epoch
        assert await old.commit_offset(node, GROUP, PLACE, 6) is fenced
        assert await old.end() is ErrorCode.producer_fenced
        assert await new.end() is NONE
        await new.until("CompleteCommit")
        assert await fetch(node, require_stable=True) == (7, NONE)
