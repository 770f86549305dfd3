"""Requests about very many groups, transactions or resources: other work has its turn meanwhile."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.api import delete_groups, list_config_resources, list_groups, list_transactions
from lakehead.broker.api.turns import STEPS_AT_ONCE
from lakehead.broker.coordinator.group.coordinator import GroupListing
from lakehead.broker.coordinator.group.group_metadata import GroupKind
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.transaction.messages import Transaction
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError

COUNT = 5_000


class Groups:
    """A coordinator of very many groups; those to be deleted are not there."""

    async def list_groups(self) -> list[GroupListing]:
        return [
            GroupListing(
                group_id=f"g{number}",
                kind=GroupKind.CLASSIC,
                state=GroupState.EMPTY,
                protocol_type="",
            )
            for number in range(COUNT)
        ]

    async def delete_group(self, _group_id: str) -> None:
        raise KafkaError(ErrorCode.group_id_not_found)


class Transactions:
    """A coordinator of very many transactional ids."""

    async def list_all(self) -> list[Transaction]:
        return [
            Transaction(
                transactional_id=f"id{number}",
                producer_id=number,
                producer_epoch=0,
                timeout_ms=1,
                updated_ms=0,
            )
            for number in range(COUNT)
        ]


def context_of(key: int, version: int) -> Any:
    state = SimpleNamespace(
        topics={f"t{number}": None for number in range(COUNT)},
        nodes={},
        client_metrics_configs={},
        group_configs={},
    )
    services = SimpleNamespace(
        groups=Groups(),
        transaction_coordinator=Transactions(),
        clock=SimpleNamespace(now_ms=lambda: 0),
        metadata=SimpleNamespace(state=state),
    )
    return SimpleNamespace(
        services=services,
        version=version,
        response=schema(key, version).response_module,
        may=lambda *_: True,
        check=lambda *_: None,
    )


async def turns_of(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """Return the response, and how many turns of the event loop others had meanwhile."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return await task, turns


@pytest.mark.parametrize(
    ("handler", "key", "version", "request_of", "field"),
    [
        (list_groups, 16, 5, {"states_filter": (), "types_filter": ()}, "groups"),
        (list_config_resources, 74, 1, {"resource_types": ()}, "config_resources"),
        (delete_groups, 42, 2, {"groups_names": [f"g{n}" for n in range(COUNT)]}, "results"),
        (
            list_transactions,
            *(66, 0, {"state_filters": (), "producer_id_filters": ()}, "transaction_states"),
        ),
    ],
)
async def test_a_list_of_thousands_is_made_in_turns(
    handler: Any, key: int, version: int, request_of: dict[str, Any], field: str
) -> None:
    context = context_of(key, version)
    response, turns = await turns_of(handler.handle(SimpleNamespace(**request_of), context))
    assert len(getattr(response, field)) == COUNT
    assert turns >= COUNT // STEPS_AT_ONCE
