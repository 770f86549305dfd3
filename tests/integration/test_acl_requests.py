"""DescribeAcls, CreateAcls and DeleteAcls, and access rules that are in force at once."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.security.standard_authorizer import CLASS_NAME
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.records import AclBinding, AclCreate, AclDelete
from tests.differential.trees import message
from tests.support.kafka_tools import Tools, require_kafka_tools
from tests.support.node_client import Client, close_clients
from tests.support.wire import Batch

DESCRIBE, CREATE, DELETE = 29, 30, 31
ANYONE = "User:ANONYMOUS"
Tree = Mapping[str, Any]


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Node]:
    """A node with access rules and the topic `t`."""
    given = {"authorizer_class_name": CLASS_NAME, **settings}
    node = await start_node(
        Settings(data=str(folder), port=0, wal_size=64 << 20, cache_size=16 << 20, **given),
        rng=random.Random(5),
    )
    try:
        await node.replication_control.create("t", 1)
        yield node
    finally:
        await close_clients()
        await node.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(tmp_path) as made:
        yield made


async def connected(node: Node, *, is_node: bool = False) -> Client:
    client = await Client.connect(node)
    if is_node:
        client.proof = NodeProof(secret=node.state.node_secret, to_node=node.node_id)
    return client


async def ask(client: Client, key: int, version: int, tree: Tree) -> Any:
    return await client.ask(key, version, message(schema(key, version).request_class, tree))


def rule(**parts: Any) -> dict[str, Any]:
    usual = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": ANYONE,
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return {**usual, **parts}


def selected(**parts: Any) -> dict[str, Any]:
    every = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {**every, **parts}


async def create(node: Node, *rules: dict[str, Any], version: int = 3) -> list[ErrorCode]:
    admin = await connected(node, is_node=True)
    answer = await ask(admin, CREATE, version, {"creations": rules})
    return [result.error_code for result in answer.results]


async def listed(client: Client, **parts: Any) -> list[tuple[Any, ...]]:
    answer = await ask(client, DESCRIBE, 3, selected(**parts))
    assert answer.error_code is ErrorCode.none
    return sorted(
        (
            *(of.resource_type, of.resource_name, of.pattern_type),
            *(one.principal, one.host, one.operation, one.permission_type),
        )
        for of in answer.resources
        for one in of.acls
    )


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_rules_are_created_listed_and_deleted(tmp_path: Path, version: int) -> None:
    async with running(tmp_path, super_users=ANYONE) as node:
        admin = await connected(node)
        rules = [rule(), rule(operation=4), rule(resource_pattern_type=4, resource_name="pre")]
        for creations in (rules, [*rules, rules[0]]):
            answer = await ask(admin, CREATE, version, {"creations": creations})
            assert {one.error_code for one in answer.results} == {ErrorCode.none}
            assert len(answer.results) == len(creations)
        assert len(node.state.acls) == 3
        assert len(await listed(admin)) == 3
        assert len(await listed(admin, operation=4)) == 1
        matching = {"pattern_type_filter": 2, "resource_name_filter": "prefixed"}
        assert len(await listed(admin, **matching)) == 1
        filters = [selected(operation=4), selected(operation=4), selected(operation=99)]
        answer = await ask(admin, DELETE, version, {"filters": filters})
        assert [len(one.matching_acls) for one in answer.filter_results] == [1, 1, 0]
        assert [one.error_code for one in answer.filter_results] == [
            *(ErrorCode.none, ErrorCode.none, ErrorCode.invalid_request)
        ]
        assert len(node.state.acls) == 2
        answer = await ask(admin, DELETE, version, {"filters": [selected()]})
        assert len(answer.filter_results[0].matching_acls) == 2
        assert not node.state.acls


async def test_a_wrong_rule_fails_alone(node: Node) -> None:
    wrong = [
        rule(resource_name=""),
        rule(resource_type=4, resource_name="t"),
        rule(resource_type=1),
        rule(resource_type=99),
        rule(resource_pattern_type=2),
        rule(operation=1),
        rule(permission_type=1),
        rule(principal="alice"),
        rule(host="10.0.0.0/99"),
        rule(host="CIDR/nonsense"),
    ]
    codes = await create(node, *wrong, rule())
    assert codes == [ErrorCode.invalid_request] * len(wrong) + [ErrorCode.none]
    assert len(node.state.acls) == 1


@pytest.mark.parametrize("part", ["resource_type", "operation", "permission_type"])
async def test_a_rule_of_the_value_unknown_ends_the_connection(node: Node, part: str) -> None:
    admin = await connected(node, is_node=True)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await ask(admin, CREATE, 3, {"creations": [rule(**{part: 0})]})


async def test_a_broker_without_an_authorizer_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, authorizer_class_name="") as node:
        client = await connected(node)
        answer = await ask(client, DESCRIBE, 3, selected())
        assert answer.error_code is ErrorCode.security_disabled
        answer = await ask(client, CREATE, 3, {"creations": [rule()]})
        assert [one.error_code for one in answer.results] == [ErrorCode.security_disabled]
        answer = await ask(client, DELETE, 3, {"filters": [selected(), selected()]})
        assert [one.error_code for one in answer.filter_results] == [
            ErrorCode.security_disabled
        ] * 2


async def test_ten_thousand_rules_in_one_request(node: Node) -> None:
    rules = [rule(resource_name=f"t{number}") for number in range(10_000)]
    assert set(await create(node, *rules)) == {ErrorCode.none}
    assert len(node.services.authorizer) == 10_000  # type: ignore[arg-type]
    admin = await connected(node, is_node=True)
    assert len(await listed(admin)) == 10_000
    answer = await ask(admin, DELETE, 3, {"filters": [selected()]})
    assert len(answer.filter_results[0].matching_acls) == 10_000
    assert len(node.services.authorizer) == 0  # type: ignore[arg-type]


async def produced(client: Client) -> ErrorCode:
    client.produce(Batch(values=(b"v",)).encode())
    return ErrorCode((await client.produced())[0])


async def fetched(client: Client) -> ErrorCode:
    part = {"partition": 0, "partition_max_bytes": 1000}
    topics = [{"topic": "t", "partitions": [part]}]
    answer = await ask(client, 1, 12, {"replica_id": -1, "session_epoch": -1, "topics": topics})
    code: ErrorCode = answer.responses[0].partitions[0].error_code
    return code


async def test_a_rule_is_in_force_when_its_response_is_here(node: Node) -> None:
    denied = ErrorCode.topic_authorization_failed
    client = await connected(node)
    assert await produced(client) == denied
    await create(node, rule(operation=4))
    assert await produced(client) == ErrorCode.none
    assert await fetched(client) == denied
    await create(node, rule())
    assert await fetched(client) == ErrorCode.none
    await create(node, rule(operation=2, permission_type=2, host="127.0.0.0/8"))
    assert await produced(client) == denied
    assert await fetched(client) == denied


async def test_a_fetch_that_waits_is_denied_once_its_rule_is_gone(node: Node) -> None:
    await create(node, rule(), rule(operation=4))
    reader, writer = await connected(node), await connected(node, is_node=True)
    part = {"partition": 0, "partition_max_bytes": 1000}
    tree = {
        "replica_id": -1,
        "session_epoch": -1,
        "max_wait": 20_000,
        "min_bytes": 1,
        "topics": [{"topic": "t", "partitions": [part]}],
    }
    waiting = asyncio.ensure_future(ask(reader, 1, 12, tree))
    await fetched(await connected(node))
    assert not waiting.done()
    await ask(writer, DELETE, 3, {"filters": [selected(operation=3)]})
    assert await produced(writer) == ErrorCode.none
    answer = (await waiting).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.topic_authorization_failed
    assert not answer.records


async def test_everyone_is_allowed_only_where_there_is_no_rule(tmp_path: Path) -> None:
    async with running(tmp_path, allow_everyone_if_no_acl_found=True) as node:
        client = await connected(node)
        assert await produced(client) == ErrorCode.none
        await create(node, rule(resource_name="t", resource_pattern_type=4, principal="User:x"))
        assert await produced(client) == ErrorCode.topic_authorization_failed


async def test_a_super_user_needs_no_rule(tmp_path: Path) -> None:
    async with running(tmp_path, super_users="User:admin;User:ANONYMOUS") as node:
        client = await connected(node)
        assert await produced(client) == ErrorCode.none
        answer = await ask(client, CREATE, 3, {"creations": [rule()]})
        assert answer.results[0].error_code is ErrorCode.none


async def test_rules_outlive_the_node(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await create(node, rule(operation=4))
    settings = Settings(
        data=str(tmp_path),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        authorizer_class_name=CLASS_NAME,
    )
    again = await start_node(settings, rng=random.Random(6))
    try:
        client = await Client.connect(again)
        assert await produced(client) == ErrorCode.none
        assert await fetched(client) == ErrorCode.topic_authorization_failed
    finally:
        await close_clients()
        await again.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer_class_name", "kafka.security.auth.SimpleAclAuthorizer"),
        ("super_users", "admin"),
    ],
)
async def test_a_wrong_setting_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name.replace("_", r"\.")):
        async with running(tmp_path, **{name: value}):
            pass


async def test_a_node_that_is_cut_off_allows_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules may have changed: it closes the connection, and produce requests too."""
    await create(node, rule(operation=2))
    client = await connected(node)
    assert await produced(client) == ErrorCode.none
    monkeypatch.setattr(type(node.session), "is_state_current", lambda _: False)
    end = node.topics.by_name["t"].partitions[0].log_end_offset  # type: ignore[union-attr]
    for request in (produced, fetched):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await request(await connected(node))
    assert node.dispatcher.cut_off_total == 2
    assert node.topics.by_name["t"].partitions[0].log_end_offset == end  # type: ignore[union-attr]


async def test_a_request_waits_for_the_rules_and_keeps_its_place(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Produce requests after it do not overtake it."""
    await create(node, rule(operation=2))
    client = await connected(node)
    is_known = [False]
    monkeypatch.setattr(type(node.session), "is_state_current", lambda _: is_known[0])
    refresh = node.engine.metadata.refresh

    async def slowly(**given: Any) -> Any:
        await asyncio.sleep(0.05)
        is_known[0] = True
        return await refresh(**given)

    monkeypatch.setattr(node.engine.metadata, "refresh", slowly)
    for _ in range(5):
        client.produce(Batch(values=(b"v",)).encode())
    assert [(await client.produced())[1] for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_denials_are_in_the_audit_log(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    client = await connected(node)
    for _ in range(100):
        assert await produced(client) == ErrorCode.topic_authorization_failed
    audit = node.services.audit
    assert audit.denied_total == 100
    assert audit.suppressed_total == 99


async def test_kafka_acls_works(node: Node) -> None:
    require_kafka_tools()
    admin = AclBinding(
        resource_type="cluster",
        resource_name="kafka-cluster",
        pattern_type="literal",
        principal=ANYONE,
        host="*",
        operation="alter",
        permission="allow",
    )
    tools = Tools(f"127.0.0.1:{node.advertised_port}")

    def refuse() -> str:
        return tools.refused("kafka-acls", "--list")

    assert "ClusterAuthorization" in await asyncio.to_thread(refuse)
    await node.engine.metadata.commit([AclCreate(acls=(admin,))])

    def use() -> None:
        shown = tools(
            *("kafka-acls", "--add", "--allow-principal", "User:alice", "--producer"),
            *("--topic", "orders", "--transactional-id", "tx", "--idempotent"),
        )
        assert "operation=WRITE" in shown
        tools(
            *("kafka-acls", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1"),
            *("--operation", "Read", "--group", "team-", "--resource-pattern-type", "prefixed"),
        )
        shown = tools("kafka-acls", "--list", "--principal", "User:bob")
        assert "name=team-, patternType=PREFIXED" in shown
        assert "permissionType=DENY" in shown
        shown = tools("kafka-acls", "--list", "--topic", "orders")
        assert shown.count("principal=User:alice") >= 3
        tools(
            *("kafka-acls", "--remove", "--force", "--allow-principal", "User:alice"),
            *("--producer", "--topic", "orders", "--transactional-id", "tx", "--idempotent"),
        )

    await asyncio.to_thread(use)
    assert {acl.principal for acl in node.state.acls} == {ANYONE, "User:bob"}
    await node.engine.metadata.commit([AclDelete(acls=tuple(node.state.acls))])
