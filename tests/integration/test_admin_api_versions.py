"""Each version of the APIs about quotas, features, directories and the metadata quorum answers as
Kafka does: right questions, and wrong ones item by item.
"""

import math
from collections.abc import AsyncIterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from tests.support.api_client import TOPIC, ApiClient, api_client, versions

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
pytestmark = pytest.mark.asyncio(loop_scope="module")

Pairs = Sequence[tuple[str, str | None]]
Changes = Sequence[tuple[str, float | None]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path_factory.mktemp("admin-versions")) as asking:
        yield asking


async def alter_quotas(
    client: ApiClient, entries: Sequence[tuple[Pairs, Changes]], version: int = 1, **rest: Any
) -> dict[tuple[tuple[str, str | None], ...], ErrorCode]:
    def build(module: ModuleType) -> Any:
        return entity(
            module,
            "AlterClientQuotasRequest",
            entries=[
                entity(
                    module,
                    "EntryData",
                    entity=[
                        entity(module, "EntityData", entity_type=kind, entity_name=name)
                        for kind, name in pairs
                    ],
                    ops=[
                        entity(module, "OpData", key=key, value=value or 0.0, remove=value is None)
                        for key, value in changes
                    ],
                )
                for pairs, changes in entries
            ],
            validate_only=rest.get("validate_only", False),
        )

    answer = await client.ask(49, version, build)
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): entry.error_code
        for entry in answer.entries
    }


async def describe_quotas(
    client: ApiClient, *components: tuple[str, int, str | None], version: int = 1, **rest: Any
) -> Any:
    def build(module: ModuleType) -> Any:
        asked = [
            entity(module, "ComponentData", entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ]
        strict = rest.get("strict", False)
        return entity(module, "DescribeClientQuotasRequest", components=asked, strict=strict)

    answer = await client.ask(48, version, build)
    if answer.error_code is not NONE:
        assert answer.entries is None
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", versions(49))
async def test_quotas_are_set_selected_and_removed(client: ApiClient, version: int) -> None:
    ann, ann_on_app, everyone = (
        (("user", f"ann{version}"),),
        (("client-id", None), ("user", f"ann{version}")),
        (("user", None),),
    )
    set_all = [
        (ann, [("producer_byte_rate", 100.0), ("request_percentage", 0.5)]),
        (ann_on_app, [("consumer_byte_rate", 7.0)]),
        (everyone, [("controller_mutation_rate", 2.5)]),
    ]
    answered = await alter_quotas(client, set_all, version)
    assert answered == {ann: NONE, ann_on_app: NONE, everyone: NONE}
    exact = ("user", 0, f"ann{version}")
    found = await describe_quotas(client, exact, version=version)
    assert found == {
        ann: {"producer_byte_rate": 100.0, "request_percentage": 0.5},
        ann_on_app: {"consumer_byte_rate": 7.0},
    }
    assert set(await describe_quotas(client, exact, strict=True, version=version)) == {ann}
    assert set(await describe_quotas(client, ("user", 1, None), version=version)) == {everyone}
    both = (("user", 2, None), ("client-id", 1, None))
    assert set(await describe_quotas(client, *both, version=version)) == {ann_on_app}
    assert {ann, ann_on_app, everyone} <= set(await describe_quotas(client, version=version))
    tried = await alter_quotas(
        client, [(ann, [("producer_byte_rate", None)])], version, validate_only=True
    )
    assert tried == {ann: NONE}
    assert len((await describe_quotas(client, exact, strict=True))[ann]) == 2
    gone = [(pairs, [(key, None) for key, _ in changes]) for pairs, changes in set_all]
    assert set((await alter_quotas(client, gone, version)).values()) == {NONE}
    assert await describe_quotas(client, version=version) == {}


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        ([], [("producer_byte_rate", 1.0)]),
        ([("planet", "x")], [("producer_byte_rate", 1.0)]),
        ([("user", "")], [("producer_byte_rate", 1.0)]),
        ([("user", "x")], [("nope", 1.0)]),
        ([("user", "x")], [("producer_byte_rate", -1.0)]),
        ([("user", "x")], [("producer_byte_rate", 1.5)]),
        ([("user", "x")], [("producer_byte_rate", 1e30)]),
        ([("user", "x")], [("producer_byte_rate", math.nan)]),
        ([("user", "x")], [("request_percentage", math.inf)]),
        ([("user", "x")], [("connection_creation_rate", 1.0)]),
        ([("user", "x")], [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)]),
        ([("ip", "1.1.1.1")], [("producer_byte_rate", 1.0)]),
        ([("ip", "x y")], [("connection_creation_rate", 1.0)]),
        ([("ip", "1.1.1.1"), ("user", "x")], [("connection_creation_rate", 1.0)]),
    ],
)
async def test_a_wrong_quota_is_refused_and_its_neighbour_taken(
    client: ApiClient, pairs: Pairs, changes: Changes
) -> None:
    good = (("ip", "::1"),)
    answered = await alter_quotas(
        client, [(pairs, changes), (good, [("connection_creation_rate", 3.0)])]
    )
    assert answered == {tuple(sorted(pairs)): INVALID, good: NONE}
    assert await describe_quotas(client) == {good: {"connection_creation_rate": 3.0}}
    await alter_quotas(client, [(good, [("connection_creation_rate", None)])])


async def test_quotas_of_many_entities_are_few_entries_of_the_metadata(client: ApiClient) -> None:
    """One after another, each would wait for the object store."""
    count, metadata = 300, client.node.engine.metadata
    for value in (1e6, None):
        before = metadata.state.next_entry
        done = await alter_quotas(
            client,
            [([("user", f"one-{n}")], [("producer_byte_rate", value)]) for n in range(count)],
        )
        assert list(done) == [(("user", f"one-{number}"),) for number in range(count)]
        assert set(done.values()) == {NONE}
        assert metadata.state.next_entry - before < 10
    assert not any(name == "one-1" for owner in metadata.state.quotas for _, name in owner)


async def test_a_quota_that_is_not_set_may_be_removed_whatever_its_name(client: ApiClient) -> None:
    pairs = (("client-id", "c"), ("user", "x"))
    changes = [("connection_creation_rate", None), ("producer_byte_rate", None)]
    assert await alter_quotas(client, [(pairs, changes)]) == {pairs: NONE}
    assert await describe_quotas(client) == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("planet", 2, None)], ErrorCode.unsupported_version),
        ([("", 2, None)], INVALID),
        ([("user", 7, None)], INVALID),
        ([("user", 0, None)], INVALID),
        ([("user", 1, "x")], INVALID),
        ([("user", 2, "x")], INVALID),
        ([("user", 2, None), ("user", 1, None)], INVALID),
        ([("user", 2, None), ("ip", 2, None)], INVALID),
    ],
)
async def test_a_wrong_filter_is_refused(
    client: ApiClient, components: Sequence[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert await describe_quotas(client, *components) is code


@pytest.mark.parametrize("version", versions(34))
async def test_replicas_are_where_they_are(client: ApiClient, version: int) -> None:
    described = await client.ask(35, 4, lambda m: entity(m, "DescribeLogDirsRequest", topics=None))
    own = described.results[0].log_dir

    async def codes(path: str) -> dict[tuple[str, int], ErrorCode]:
        def build(module: ModuleType) -> Any:
            topics = [
                entity(module, "AlterReplicaLogDirTopic", name=name, partitions=(0, 9))
                for name in (TOPIC, "nowhere")
            ]
            directory = entity(module, "AlterReplicaLogDir", path=path, topics=topics)
            return entity(module, "AlterReplicaLogDirsRequest", dirs=[directory])

        answer = await client.ask(34, version, build)
        return {
            (topic.topic_name, partition.partition_index): partition.error_code
            for topic in answer.results
            for partition in topic.partitions
        }

    unknown = ErrorCode.unknown_topic_or_partition
    expected = dict.fromkeys([(TOPIC, 9), ("nowhere", 0), ("nowhere", 9)], unknown)
    assert await codes(own) == {(TOPIC, 0): NONE} | expected
    assert set((await codes("/elsewhere")).values()) == {ErrorCode.log_dir_not_found}


@pytest.mark.parametrize("version", versions(55))
async def test_the_metadata_log_stands_for_a_quorum(client: ApiClient, version: int) -> None:
    async def ask(*places: tuple[str, int]) -> Any:
        def build(module: ModuleType) -> Any:
            topics = [
                entity(
                    module,
                    "TopicData",
                    topic_name=name,
                    partitions=[entity(module, "PartitionData", partition_index=index)],
                )
                for name, index in places
            ]
            return entity(module, "DescribeQuorumRequest", topics=topics)

        return await client.ask(55, version, build)

    answer = await ask(("__cluster_metadata", 0))
    quorum = answer.topics[0].partitions[0]
    state = client.node.state
    assert (quorum.error_code, quorum.leader_id) == (NONE, client.node.node_id)
    assert quorum.high_watermark == state.next_entry
    assert [voter.replica_id for voter in quorum.current_voters] == sorted(state.nodes)
    if version >= 2:
        assert [node.listeners[0].port for node in answer.nodes] == [client.node.advertised_port]
    for places in ([("other", 0)], [("__cluster_metadata", 1)], [("a", 0), ("b", 0)]):
        refused = await ask(*places)
        codes = [topic.partitions[0].error_code for topic in refused.topics]
        assert codes == [ErrorCode.unknown_topic_or_partition] * len(places)
    assert (await ask()).topics == ()


@pytest.mark.parametrize("version", versions(57))
async def test_a_feature_has_only_possible_levels(client: ApiClient, version: int) -> None:
    async def update(name: str, level: int) -> Any:
        def build(module: ModuleType) -> Any:
            change = entity(
                module,
                "FeatureUpdateKey",
                feature=name,
                max_version_level=level,
                allow_downgrade=False,
                upgrade_type=1,
            )
            return entity(
                module,
                "UpdateFeaturesRequest",
                timeout=1000,
                feature_updates=[change],
                validate_only=False,
            )

        return await client.ask(57, version, build)

    nope = [("nope", 1), ("nope", 0), ("nope", -1)]
    known = [("metadata.version", 7), ("metadata.version", 1), ("transaction.version", 1)]
    for name, level in (*nope, *known):
        answer = await update(name, level)
        assert answer.error_code is ErrorCode.invalid_update_version
        assert name in answer.error_message
