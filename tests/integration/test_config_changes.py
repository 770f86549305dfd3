"""Configs of topics, brokers and groups are set, added to, reset, shown and listed; what is wrong
is refused with Kafka's code, each resource on its own.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.api.config_changes import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from lakehead.broker.configs.entries import ConfigSource
from lakehead.broker.protocol.messages import entity
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.metadata.records import ScramUpsert
from tests.support import api_client as node_of_tests
from tests.support.api_client import ApiClient, api_client

KNOWN = node_of_tests.TOPIC
NONE, INVALID, CONFIG = ErrorCode.none, ErrorCode.invalid_request, ErrorCode.invalid_config
SET, DELETE, APPEND, SUBTRACT = range(4)
pytestmark = pytest.mark.asyncio(loop_scope="module")

OF_LISTENERS = {"ssl.keystore.location": "x", "ssl.client.auth": "required"}

Change = tuple[str, int, str | None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path_factory.mktemp("changes")) as asking:
        yield asking


def changing(
    *asked: tuple[int, str, Sequence[Change]], only_check: bool = False
) -> Callable[[ModuleType], Any]:
    """Return what builds IncrementalAlterConfigs."""

    def build(module: ModuleType) -> Any:
        resources = [
            entity(
                module,
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=[
                    entity(
                        module, "AlterableConfig", name=config, config_operation=what, value=value
                    )
                    for config, what, value in changes
                ],
            )
            for kind, name, changes in asked
        ]
        return entity(
            module, "IncrementalAlterConfigsRequest", resources=resources, validate_only=only_check
        )

    return build


async def change(
    client: ApiClient, *asked: tuple[int, str, Sequence[Change]], only_check: bool = False
) -> list[ErrorCode]:
    answer = await client.ask(44, 1, changing(*asked, only_check=only_check))
    return [one.error_code for one in answer.responses]


async def replace(
    client: ApiClient, kind: int, name: str, *configs: tuple[str, str | None]
) -> ErrorCode:
    def build(module: ModuleType) -> Any:
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=kind,
            resource_name=name,
            configs=[entity(module, "AlterableConfig", name=n, value=v) for n, v in configs],
        )
        return entity(module, "AlterConfigsRequest", resources=[resource], validate_only=False)

    code: ErrorCode = (await client.ask(33, 2, build)).responses[0].error_code
    return code


async def describe(client: ApiClient, kind: int, name: str) -> Any:
    """Return the configs as (value, source) by name; or the error."""

    def build(module: ModuleType) -> Any:
        resource = entity(
            module,
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=None,
        )
        return entity(
            module,
            "DescribeConfigsRequest",
            resources=[resource],
            include_synonyms=True,
            include_documentation=True,
        )

    result = (await client.ask(32, 4, build)).results[0]
    if result.error_code is not NONE:
        return result.error_code
    assert all(config.documentation for config in result.configs)
    return {config.name: (config.value, config.config_source) for config in result.configs}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, KNOWN, [("retention.ms", SET, None)], INVALID),
        (TOPIC, KNOWN, [("retention.ms", 9, "1")], INVALID),
        (TOPIC, KNOWN, [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], INVALID),
        (TOPIC, KNOWN, [("nope", SET, "1")], CONFIG),
        (TOPIC, KNOWN, [("nope", APPEND, "1")], CONFIG),
        (TOPIC, KNOWN, [("retention.ms", APPEND, "1")], CONFIG),
        (TOPIC, KNOWN, [("retention.ms", SET, "1"), ("retention.bytes", SET, "x")], CONFIG),
        (TOPIC, "", [("retention.ms", SET, "1")], INVALID),
        (TOPIC, "a b", [("retention.ms", SET, "1")], ErrorCode.invalid_topic_exception),
        (TOPIC, "nowhere", [("retention.ms", SET, "1")], ErrorCode.unknown_topic_or_partition),
        (BROKER, "0", [("num.partitions", SET, "5")], INVALID),
        (BROKER, "0", [("nope.nope", SET, "5")], INVALID),
        (BROKER, "0", [("message.max.bytes", SET, "-1")], INVALID),
        (BROKER, "0", [("ssl.keystore.password", SET, "x")], INVALID),
        (BROKER, "77", [("message.max.bytes", SET, "5")], INVALID),
        (BROKER, "xx", [("message.max.bytes", SET, "5")], INVALID),
        (BROKER, "", [("listeners", SET, "PLAINTEXT://:1")], INVALID),
        (GROUP, "team", [("consumer.session.timeout.ms", SET, "5")], CONFIG),
        (GROUP, "team", [("share.auto.offset.reset", SET, "maybe")], CONFIG),
        (GROUP, "team", [("share.auto.offset.reset", SET, "by_duration:PT")], CONFIG),
        (GROUP, "team", [("nope", SET, "1")], CONFIG),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")], INVALID),
        (BROKER, "", [("max.connections", SET, "0")], INVALID),
        (BROKER, "", [("max.connections.per.ip", SET, "0")], INVALID),
        (BROKER, "", [("max.connections.per.ip.overrides", SET, "10.0.0.7")], INVALID),
        (BROKER, "", [("log.retention.ms", SET, "0")], INVALID),
        (BROKER, "", [("listener.name.plaintext.ssl.keystore.location", SET, "x")], INVALID),
        (BROKER_LOGGER, "0", [("root", SET, "LOUD")], CONFIG),
        (BROKER_LOGGER, "0", [("root", SET, "INFO"), ("nope", SET, "INFO")], CONFIG),
        (BROKER_LOGGER, "0", [("root", DELETE, None)], INVALID),
        (BROKER_LOGGER, "0", [("root", APPEND, "INFO")], INVALID),
        (BROKER_LOGGER, "77", [("root", SET, "INFO")], INVALID),
        (BROKER_LOGGER, "", [("root", SET, "INFO")], INVALID),
        (CLIENT_METRICS, "m", [("interval.ms", SET, "99")], INVALID),
        (CLIENT_METRICS, "m", [("interval.ms", SET, "often")], CONFIG),
        (CLIENT_METRICS, "m", [("match", SET, "client_id=[")], CONFIG),
        (CLIENT_METRICS, "m", [("match", SET, "client_id=a=b")], CONFIG),
        (CLIENT_METRICS, "m", [("metrics", SET, "a"), ("nope", SET, "1")], INVALID),
        (CLIENT_METRICS, "", [("interval.ms", SET, "1000")], INVALID),
        (99, KNOWN, [("retention.ms", SET, "1")], INVALID),
    ],
)
async def test_a_wrong_change_is_refused_and_its_neighbour_made(
    client: ApiClient, kind: int, name: str, changes: list[Change], code: ErrorCode
) -> None:
    good = (GROUP, "good", [("share.auto.offset.reset", SET, "by_duration:P1DT2H3.5S")])
    state = client.node.state
    topics, brokers = state.topics, state.broker_configs
    assert await change(client, (kind, name, changes), good) == [code, NONE]
    assert client.node.state.topics == topics
    assert client.node.state.broker_configs == brokers
    assert not client.node.state.client_metrics_configs
    assert set(client.node.state.group_configs) == {"good"}
    assert await change(client, (GROUP, "good", [("share.auto.offset.reset", DELETE, None)])) == [
        NONE
    ]
    assert not client.node.state.group_configs


async def test_addresses_are_shut_out_only_beside_some_that_are_not(client: ApiClient) -> None:
    limit, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    own = (limit, SET, "0"), (overrides, SET, "127.0.0.1:100")
    assert await change(client, (BROKER, "", list(own))) == [NONE]
    assert await change(client, (BROKER, "0", [(limit, SET, "0")])) == [NONE]
    assert await change(client, (BROKER, "", [(overrides, DELETE, None)])) == [INVALID]
    assert await change(client, (BROKER, "", [(overrides, SET, "")])) == [INVALID]
    assert await change(client, (BROKER, "0", [(overrides, SET, "127.0.0.1:99")])) == [NONE]
    assert await change(client, (BROKER, "0", [(overrides, DELETE, None)])) == [NONE]
    assert await change(client, (BROKER, "0", [(overrides, SET, "")])) == [INVALID]
    both = [(limit, SET, "99"), (overrides, SET, "")]
    assert await change(client, (BROKER, "0", both)) == [NONE]
    assert await change(client, (BROKER, "0", [(limit, DELETE, None)])) == [INVALID]
    gone = [(limit, DELETE, None), (overrides, DELETE, None)]
    assert await change(client, (BROKER, "0", gone)) == [NONE]
    assert await change(client, (BROKER, "", gone[:1])) == [NONE]
    assert await change(client, (BROKER, "", [(overrides, DELETE, None)])) == [NONE]


async def test_configs_of_listeners_are_set_for_one_broker_with_kafkas_words(
    client: ApiClient,
) -> None:
    """But for limits of connections."""
    prefix = "listener.name.plaintext."
    wanted = [(f"{prefix}{name}", SET, value) for name, value in OF_LISTENERS.items()]
    limits = [(f"{prefix}max.connections", SET, "900")]
    response = await client.ask(44, 1, changing((BROKER, "", [*wanted, *limits])))
    assert response.responses[0].error_code is INVALID
    assert response.responses[0].error_message == (
        "Cannot update these configs at default cluster level, broker id must be specified: "
        f"[{prefix}ssl.client.auth, {prefix}ssl.keystore.location]"
    )
    assert await change(client, (BROKER, "0", wanted), (BROKER, "", limits)) == [NONE, NONE]
    gone = [(name, DELETE, None) for name, _, _ in [*wanted, *limits]]
    assert await change(client, (BROKER, "0", gone), (BROKER, "", gone)) == [NONE, NONE]


async def test_what_is_named_twice_is_not_changed(client: ApiClient) -> None:
    one = (TOPIC, KNOWN, [("retention.ms", SET, "1")])
    other = (TOPIC, KNOWN, [("retention.ms", SET, "2")])
    group = (GROUP, KNOWN, [("consumer.session.timeout.ms", SET, "50000")])
    assert await change(client, one, group, other) == [INVALID, NONE, INVALID]
    assert client.node.state.topics[KNOWN].configs == Map()
    assert await replace(client, GROUP, KNOWN) is NONE
    assert not client.node.state.group_configs


async def test_lists_grow_and_shrink(client: ApiClient) -> None:
    async def after(operation: int, value: str | None) -> str | None:
        assert await change(client, (TOPIC, KNOWN, [("cleanup.policy", operation, value)])) == [
            NONE
        ]
        return client.node.state.topics[KNOWN].configs.get("cleanup.policy")

    assert await after(APPEND, "compact") == "delete,compact"
    assert await after(APPEND, "compact, delete") == "delete,compact"
    assert await after(SUBTRACT, "delete") == "compact"
    assert await after(SUBTRACT, "compact") == ""
    assert await after(DELETE, None) is None
    assert await after(DELETE, None) is None


async def test_a_change_that_is_only_tried_is_checked_and_not_made(client: ApiClient) -> None:
    before = client.node.state.next_entry
    good = (TOPIC, KNOWN, [("retention.ms", SET, "5")])
    bad = (BROKER, "", [("message.max.bytes", SET, "x")])
    assert await change(client, good, bad, only_check=True) == [NONE, INVALID]
    assert client.node.state.next_entry == before


async def test_brokers_have_configs_of_one_and_of_all(client: ApiClient) -> None:
    topic = client.node.topics.find(KNOWN)
    assert topic is not None
    usual = topic.rules.batch_size_max
    for_all = (BROKER, "", [("message.max.bytes", SET, "3000")])
    for_one = (BROKER, "0", [("message.max.bytes", SET, "2000")])
    assert await change(client, for_all, for_one) == [NONE, NONE]
    assert topic.rules.batch_size_max == 2000
    own = await describe(client, BROKER, "0")
    assert own["message.max.bytes"] == ("2000", ConfigSource.BROKER)
    assert await describe(client, BROKER, "") == {
        "message.max.bytes": ("3000", ConfigSource.ALL_BROKERS)
    }
    assert (await describe(client, TOPIC, KNOWN))["max.message.bytes"] == (
        "2000",
        ConfigSource.BROKER,
    )
    assert await replace(client, BROKER, "0") is NONE
    assert topic.rules.batch_size_max == 3000
    assert await change(client, (BROKER, "", [("message.max.bytes", DELETE, None)])) == [NONE]
    assert topic.rules.batch_size_max == usual
    assert ALL_BROKERS not in client.node.state.broker_configs


async def test_the_level_of_the_log_is_set_while_a_node_runs(client: ApiClient) -> None:
    for only_check, level in ((False, "WARN"), (False, "TRACE"), (False, "INFO"), (True, "FATAL")):
        assert await change(
            client, (BROKER_LOGGER, "0", [("root", SET, level)]), only_check=only_check
        ) == [NONE]
        shown = "INFO" if only_check else level
        assert await describe(client, BROKER_LOGGER, "0") == {
            "root": (shown, ConfigSource.BROKER_LOGGER)
        }
    assert await replace(client, BROKER_LOGGER, "0", ("root", "WARN")) is INVALID


async def test_what_kafkas_tools_set_without_effect_is_kept(client: ApiClient) -> None:
    kept = [
        ("leader.replication.throttled.rate", SET, "1000"),
        ("sasl.kerberos.min.time.before.relogin", SET, "58000"),
    ]
    assert await change(client, (BROKER, "0", kept)) == [NONE]
    shown = await describe(client, BROKER, "0")
    assert shown["leader.replication.throttled.rate"] == ("1000", ConfigSource.BROKER)
    assert await change(client, (BROKER, "0", [(name, DELETE, None) for name, _, _ in kept])) == [
        NONE
    ]
    assert 0 not in client.node.state.broker_configs


async def test_replacing_all_configs_resets_those_not_named(client: ApiClient) -> None:
    assert await replace(client, TOPIC, KNOWN, ("retention.ms", "5"), ("flush.ms", "7")) is NONE
    assert await replace(client, TOPIC, KNOWN, ("flush.ms", "8")) is NONE
    assert client.node.state.topics[KNOWN].configs == Map({"flush.ms": "8"})
    assert await replace(client, TOPIC, KNOWN, ("flush.ms", None)) is INVALID
    assert await replace(client, TOPIC, KNOWN, ("a", "1"), ("flush.ms", "9")) is CONFIG
    assert await replace(client, TOPIC, KNOWN, ("flush.ms", "1"), ("flush.ms", "2")) is INVALID
    assert client.node.state.topics[KNOWN].configs == Map({"flush.ms": "8"})
    assert await replace(client, TOPIC, KNOWN) is NONE
    assert client.node.state.topics[KNOWN].configs == Map()


async def test_configs_of_groups_are_shown_and_listed(client: ApiClient) -> None:
    asked = [("consumer.session.timeout.ms", SET, "50000")]
    assert await change(client, (GROUP, "team", asked)) == [NONE]
    shown, other = [await describe(client, GROUP, name) for name in ("team", "other")]
    assert shown.pop("consumer.session.timeout.ms") == ("50000", ConfigSource.GROUP)
    assert other.pop("consumer.session.timeout.ms") == ("45000", ConfigSource.DEFAULT)
    assert shown == other
    assert len(shown) == 18
    assert await describe(client, GROUP, "") is INVALID

    def every_group(module: ModuleType) -> Any:
        return entity(module, "ListConfigResourcesRequest", resource_types=(GROUP,))

    listed = await client.ask(74, 1, every_group)
    assert [one.resource_name for one in listed.config_resources] == ["team"]
    assert await replace(client, GROUP, "team") is NONE


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception),
        (TOPIC, "nowhere", ErrorCode.unknown_topic_or_partition),
        (BROKER, "77", INVALID),
        (BROKER, "xx", INVALID),
        (BROKER_LOGGER, "77", INVALID),
        (CLIENT_METRICS, "", INVALID),
        (99, "x", INVALID),
    ],
)
async def test_what_has_no_configs_is_an_error(
    client: ApiClient, kind: int, name: str, code: ErrorCode
) -> None:
    assert await describe(client, kind, name) is code


async def test_credentials_are_told_without_secrets(client: ApiClient) -> None:
    async def ask(*names: str) -> Any:
        def build(module: ModuleType) -> Any:
            users = [entity(module, "UserName", name=name) for name in names]
            return entity(module, "DescribeUserScramCredentialsRequest", users=users or None)

        answer = await client.ask(50, 0, build)
        return {
            result.user: (
                result.error_code,
                [(info.mechanism, info.iterations) for info in result.credential_infos],
            )
            for result in answer.results
        }

    missing: tuple[ErrorCode, list[Any]] = (ErrorCode.resource_not_found, [])
    assert await ask() == {}
    assert await ask("ann") == {"ann": missing}
    known = ScramUpsert(
        user="ann",
        mechanism="SCRAM-SHA-512",
        salt=b"s",
        stored_key=b"k",
        server_key=b"v",
        iterations=4096,
    )
    await client.node.engine.metadata.commit([known])
    assert await ask() == {"ann": (NONE, [(2, 4096)])}
    assert await ask("ann", "bob", "bob") == {
        "ann": (NONE, [(2, 4096)]),
        "bob": (ErrorCode.duplicate_resource, []),
    }


async def test_configs_of_many_resources_are_few_entries_of_the_metadata(client: ApiClient) -> None:
    """One after another, each would wait for the object store."""
    count, metadata = 300, client.node.engine.metadata
    wanted = [
        (GROUP, f"many-{n}", [("consumer.session.timeout.ms", SET, "50000")]) for n in range(count)
    ]
    wanted.insert(7, (GROUP, "many-wrong", [("consumer.session.timeout.ms", SET, "soon")]))
    before = metadata.state.next_entry
    codes = await change(client, *wanted)
    assert codes.pop(7) is CONFIG
    assert codes == [NONE] * count
    assert metadata.state.next_entry - before < 10
    assert dict(metadata.state.group_configs["many-299"]) == {
        "consumer.session.timeout.ms": "50000"
    }
