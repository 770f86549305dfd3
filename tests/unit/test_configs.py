"""Which configs there are, which values they take, and where the one in force comes from."""

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import LONG_MAX, ConfigType, Effect
from lakehead.broker.configs.entries import (
    BROKER_CONFIGS,
    BrokerValues,
    ConfigSource,
    broker_entries,
    broker_values,
    group_entries,
    record_rules,
    shared_entries,
    topic_entries,
    topic_value,
)
from lakehead.broker.configs.group_configs import number_in_force, parse_group_configs
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS
from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS, parse_topic_configs
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.setting_sources import SETTINGS, load
from lakehead.broker.settings import Settings
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.metadata.state import MetadataImage

KAFKA_BROKER_CONFIGS = 340
"""What DescribeConfigs of a broker of Kafka 4.3 lists, ..."""
DYNAMIC_ONLY = 3
"""... and the throttles, which it does not list."""


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cleanup.policy", "compact, delete", "shred"),
        ("cleanup.policy", "", "compact;delete"),
        ("compression.type", "zstd", "brotli"),
        ("compression.gzip.level", "-1", "0"),
        ("compression.gzip.level", "9", "10"),
        ("compression.lz4.level", "17", "0"),
        ("compression.zstd.level", "-131072", "-131073"),
        ("follower.replication.throttled.replicas", "0:1,1:2", "xx"),
        ("leader.replication.throttled.replicas", "*", "*,1:1"),
        ("max.message.bytes", "0", "-1"),
        ("max.message.bytes", "2147483647", "2147483648"),
        ("max.message.bytes", " 77 ", ""),
        ("min.cleanable.dirty.ratio", "0.25", "1.5"),
        ("min.cleanable.dirty.ratio", "1", "nan"),
        ("preallocate", "TRUE", "maybe"),
        ("retention.bytes", "-1", "1.5"),
        ("retention.ms", "-1", "-2"),
        ("segment.bytes", "1048576", "1048575"),
        ("message.timestamp.type", "LogAppendTime", "Never"),
    ],
)
def test_values_are_checked(name: str, good: str, bad: str) -> None:
    parse_topic_configs({name: good})
    with pytest.raises(KafkaError) as refused:
        parse_topic_configs({name: bad})
    assert refused.value.code is ErrorCode.invalid_config
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("retention.ms", "+5", "5"),
        ("retention.ms", " 05\t", "5"),
        ("retention.ms", "-0", "0"),
        ("retention.ms", "\u0663", "3"),
        ("retention.ms", "1_000", None),
        ("retention.ms", "\u00a05", None),
        ("retention.ms", "--5", None),
        ("retention.ms", "+", None),
        ("retention.ms", "1e3", None),
        ("retention.ms", "0x10", None),
        ("retention.ms", "9223372036854775808", None),
        ("retention.ms", "9" * 5000, None),
        ("retention.bytes", "-" + "9" * 5000, None),
        ("max.message.bytes", "+1000", "1000"),
        ("max.message.bytes", "1000.0", None),
        ("cleanup.policy", "compact , delete", "compact,delete"),
        ("cleanup.policy", " compact\t,\ndelete ", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("cleanup.policy", " ", ""),
        ("cleanup.policy", "compact,", None),
        ("cleanup.policy", ",compact", None),
        ("cleanup.policy", ",", None),
        ("cleanup.policy", "COMPACT", None),
        ("cleanup.policy", "compact\u00a0,delete", None),
        ("follower.replication.throttled.replicas", " * ", "*"),
        ("follower.replication.throttled.replicas", "0:1 , 1:1", "0:1,1:1"),
        ("follower.replication.throttled.replicas", "0:1,", "0:1,"),
        ("follower.replication.throttled.replicas", "0:1,0:1", "0:1,0:1"),
        ("preallocate", " True ", "true"),
        ("preallocate", "yes", None),
        ("preallocate", "", None),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", ".5", "0.5"),
        ("min.cleanable.dirty.ratio", "0.", "0.0"),
        ("min.cleanable.dirty.ratio", "-0.0", "-0.0"),
        ("min.cleanable.dirty.ratio", "0.5d", "0.5"),
        ("min.cleanable.dirty.ratio", "0.5F", "0.5"),
        ("min.cleanable.dirty.ratio", "1e-4", "1.0E-4"),
        ("min.cleanable.dirty.ratio", "0.0001234", "1.234E-4"),
        ("min.cleanable.dirty.ratio", "0x1p-1", "0.5"),
        ("min.cleanable.dirty.ratio", "+0.25", "0.25"),
        ("min.cleanable.dirty.ratio", "nan", None),
        ("min.cleanable.dirty.ratio", "inf", None),
        ("min.cleanable.dirty.ratio", "Infinity", None),
        ("min.cleanable.dirty.ratio", "0.1_0", None),
        ("min.cleanable.dirty.ratio", "1/2", None),
        ("compression.type", " zstd ", "zstd"),
        ("compression.type", "ZSTD", None),
        ("message.timestamp.type", "createtime", None),
        ("remote.storage.enable", "FALSE", "false"),
        ("remote.storage.enable", "true", None),
    ],
)
def test_values_are_read_and_shown_by_the_grammar_of_kafka(
    name: str, value: str, shown: str | None
) -> None:
    """As Apache Kafka 4.2 responded to each; None: it refused."""
    if shown is None:
        with pytest.raises(KafkaError):
            parse_topic_configs({name: value})
    else:
        assert parse_topic_configs({name: value}) == {name: shown}


def test_values_that_contradict_each_other_are_refused() -> None:
    parse_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"})
    with pytest.raises(KafkaError):
        parse_topic_configs({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "10"})
    with pytest.raises(KafkaError):
        parse_topic_configs({"max.compaction.lag.ms": "10"}, {"min.compaction.lag.ms": "100"})
    parse_topic_configs({"min.compaction.lag.ms": None, "max.compaction.lag.ms": "10"}, {})


def test_every_default_is_a_valid_value() -> None:
    parse_topic_configs({name: config.default for name, config in TOPIC_CONFIGS.items()})
    for config in KAFKA_CONFIGS.values():
        if config.default is not None:
            config.parse(config.default)


def test_every_config_of_kafkas_brokers_is_known_and_explained() -> None:
    topics = {config.synonym for config in TOPIC_CONFIGS.values() if config.synonym}
    assert topics <= set(KAFKA_CONFIGS)
    assert len(KAFKA_CONFIGS) == KAFKA_BROKER_CONFIGS + DYNAMIC_ONLY
    assert {setting.name for setting in SETTINGS} <= set(BROKER_CONFIGS)
    assert [name for name, config in BROKER_CONFIGS.items() if not config.note] == []
    for config in KAFKA_CONFIGS.values():
        if config.kind is ConfigType.CLASS:  # of one, two of Kafka's classes have their like here
            is_known = config.name == "sasl.server.callback.handler.class"
            assert config.effect is (Effect.HONOURED if is_known else Effect.REFUSED)
        if config.kind is ConfigType.PASSWORD:
            assert config.effect is not Effect.NO_EFFECT


def test_what_is_honoured_under_kafkas_name_is_a_setting_or_a_default_of_topics() -> None:
    settings = {setting.name for setting in SETTINGS}
    topics = {config.synonym for config in TOPIC_CONFIGS.values()}
    aliases = {"log.retention.hours", "log.retention.minutes"}
    while_running = {"cordoned.log.dirs"}
    honoured = {n for n, config in KAFKA_CONFIGS.items() if config.effect is Effect.HONOURED}
    assert honoured <= settings | topics | aliases | while_running


def test_a_value_set_closer_to_the_topic_goes_before_others() -> None:
    name = "max.message.bytes"
    places = [
        (ConfigSource.TOPIC, "1"),
        (ConfigSource.BROKER, "2"),
        (ConfigSource.ALL_BROKERS, "3"),
        (ConfigSource.STATIC_BROKER, "4"),
        (ConfigSource.DEFAULT, "1048588"),
    ]
    values = BrokerValues(
        settings=Settings(message_max_bytes=4),
        own={"message.max.bytes": "2"},
        shared={"message.max.bytes": "3"},
    )
    configs = {name: "1"}
    removals: list[dict[str, Any]] = [{"own": {}}, {"shared": {}}, {"settings": Settings()}, {}]
    for number in range(len(places)):
        entry = {entry.name: entry for entry in topic_entries(configs, values)}[name]
        assert [(one.source, one.value) for one in entry.synonyms] == places[number:]
        assert (entry.source, entry.value) == places[number]
        assert record_rules(configs, values).batch_size_max == int(places[number][1])
        assert topic_value(name, configs, values) == places[number][1]
        if configs:
            configs = {}
        else:
            values = replace(values, **removals.pop(0))


@pytest.mark.parametrize(
    ("name", "in_force"),
    [("segment.ms", "604800000"), ("segment.jitter.ms", "0"), ("flush.ms", str(LONG_MAX))],
)
def test_defaults_that_brokers_do_not_have_are_the_topics_own(name: str, in_force: str) -> None:
    values = BrokerValues(settings=Settings())
    (entry,) = (one for one in topic_entries({}, values) if one.name == name)
    assert (entry.value, entry.source, entry.synonyms) == (in_force, ConfigSource.DEFAULT, ())
    assert topic_value(name, {}, values) == in_force
    shared = BrokerValues(settings=Settings(), shared={TOPIC_CONFIGS[name].synonym: "77"})
    assert topic_value(name, {}, shared) == "77"


def test_a_topic_may_have_no_policy_at_all() -> None:
    values = BrokerValues(settings=Settings(), shared={"log.cleanup.policy": ""})
    assert topic_value("cleanup.policy", {}, values) == ""


def test_brokers_show_what_was_set_for_them_and_for_all() -> None:
    state = MetadataImage(
        broker_configs=Map(
            {
                0: Map({"message.max.bytes": "2"}),
                1: Map({"message.max.bytes": "9"}),
                ALL_BROKERS: Map({"log.retention.ms": "3"}),
            }
        )
    )
    values = broker_values(state, Settings(), {"listeners": "here"})
    entries = {entry.name: entry for entry in broker_entries(values)}
    assert entries["message.max.bytes"].value == "2"
    assert entries["log.retention.ms"].source is ConfigSource.ALL_BROKERS
    assert entries["listeners"].value == "here"
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["auto.create.topics.enable"].is_read_only
    assert not entries["message.max.bytes"].is_read_only
    assert entries["ssl.key.password"].is_sensitive
    shown = shared_entries(state.broker_configs[ALL_BROKERS])
    assert [(entry.name, entry.value) for entry in shown] == [("log.retention.ms", "3")]


def test_a_throttle_is_shown_while_it_is_set() -> None:
    def shown(**values: Any) -> set[str]:
        return {entry.name for entry in broker_entries(BrokerValues(settings=Settings(), **values))}

    name = "leader.replication.throttled.rate"
    assert name not in shown()
    assert shown(own={name: "7"}) == shown(shared={name: "7"}) == shown() | {name}


def test_a_group_shows_where_each_value_comes_from() -> None:
    name, of_all_groups = "consumer.session.timeout.ms", "group.consumer.session.timeout.ms"
    values = BrokerValues(settings=Settings(group_consumer_session_timeout_ms=46_000))

    def places(name: str, configs: dict[str, str]) -> list[tuple[str, str | None, ConfigSource]]:
        (entry,) = (one for one in group_entries(configs, values) if one.name == name)
        assert entry.value == entry.synonyms[0].value
        return [(one.name, one.value, one.source) for one in entry.synonyms]

    brokers = [
        (of_all_groups, "46000", ConfigSource.STATIC_BROKER),
        (of_all_groups, "45000", ConfigSource.DEFAULT),
    ]
    assert places(name, {}) == brokers
    assert places(name, {name: "50000"}) == [(name, "50000", ConfigSource.GROUP), *brokers]
    own, reset = [("latest", ConfigSource.DEFAULT)], "share.auto.offset.reset"
    assert places(reset, {}) == [(reset, *one) for one in own]
    assert places(reset, {reset: "earliest"})[0] == (reset, "earliest", ConfigSource.GROUP)


def test_configs_of_consumer_groups_are_within_the_bounds_of_the_node() -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    settings = Settings(
        group_consumer_min_session_timeout_ms=1_000,
        group_consumer_max_heartbeat_interval_ms=60_000,
    )
    assert parse_group_configs({session: "6000"}, {}, settings) == {session: "6000"}
    refused: list[tuple[dict[str, str | None], dict[str, str], Settings]] = [
        ({session: "6000"}, {}, Settings()),
        ({session: "999"}, {}, settings),
        ({session: "60001"}, {}, settings),
        ({session: "5000"}, {}, settings),  # the heartbeat interval is as long
        ({heartbeat: "50000"}, {}, settings),
        ({heartbeat: "7000"}, {session: "7000"}, settings),
        ({heartbeat: "4000"}, {}, settings),
    ]
    for changes, present, known in refused:
        with pytest.raises(KafkaError) as caught:
            parse_group_configs(changes, present, known)
        assert caught.value.code is ErrorCode.invalid_config


SHARE_BOUNDS = (
    ("share.delivery.count.limit", 2, 10),
    ("share.heartbeat.interval.ms", 5_000, 15_000),
    ("share.partition.max.record.locks", 100, 4_000),
    ("share.record.lock.duration.ms", 15_000, 60_000),
    ("share.session.timeout.ms", 45_000, 60_000),
)


@pytest.mark.parametrize(("name", "least", "most"), SHARE_BOUNDS)
def test_configs_of_share_groups_are_within_the_bounds_of_the_node(
    name: str, least: int, most: int
) -> None:
    """Kafka 4.3 has these defaults and texts."""
    known = Settings()
    for value in (least, most):
        assert parse_group_configs({name: str(value)}, {}, known) == {name: str(value)}
    bound = f"group.{name.replace('share.', 'share.{}.')}"
    low, high = bound.format("min"), bound.format("max")
    for settings, value, text in (
        (load({low: least + 1}), least, f"{name} must be greater than or equal to {low}"),
        (load({high: most - 1}), most, f"{name} must be less than or equal to {high}"),
    ):
        with pytest.raises(KafkaError) as caught:
            parse_group_configs({name: str(value)}, {}, settings)
        assert (caught.value.code, caught.value.message) == (ErrorCode.invalid_config, text)


def test_a_number_that_a_group_set_within_other_bounds_counts_as_the_nearest() -> None:
    name = "share.record.lock.duration.ms"
    known = Settings(group_share_record_lock_duration_ms=5_000)
    for own, value in (("1000", 15_000), ("20000", 20_000), ("90000", 60_000)):
        assert number_in_force(name, {name: own}, known) == value
    assert number_in_force(name, {}, known) == 5_000


def test_the_session_of_a_share_group_outlasts_its_heartbeats() -> None:
    session, heartbeat = "share.session.timeout.ms", "share.heartbeat.interval.ms"
    known = Settings(group_share_max_heartbeat_interval_ms=60_000)
    with pytest.raises(KafkaError) as caught:
        parse_group_configs({heartbeat: "45000"}, {}, known)
    assert caught.value.message == f"{session} must be greater than {heartbeat}"


def test_what_is_null_in_kafka_is_null_here() -> None:
    entries = {entry.name: entry for entry in broker_entries(BrokerValues(settings=Settings()))}
    for name in ("broker.rack", "log.retention.ms", "log.retention.minutes"):
        assert (entries[name].value, entries[name].synonyms) == (None, ())
    racked = broker_entries(BrokerValues(settings=Settings(broker_rack="a", log_retention_ms=5)))
    (rack,) = (entry for entry in racked if entry.name == "broker.rack")
    assert [(one.value, one.source) for one in rack.synonyms] == [("a", ConfigSource.STATIC_BROKER)]
    (retention,) = (entry for entry in racked if entry.name == "log.retention.ms")
    assert retention.value == "5"


@pytest.mark.parametrize(
    "name", ["max.connections", "producer.id.expiration.ms", "log.cleaner.dedupe.buffer.size"]
)
def test_settings_that_are_looked_up_when_needed_can_be_set_within_their_bounds(name: str) -> None:
    config = BROKER_CONFIGS[name]
    assert config.is_dynamic
    config.parse("2000000")
    with pytest.raises(KafkaError, match="must be at least"):
        config.parse("0")
    values = BrokerValues(settings=Settings(), own={name: "7"}, shared={name: "9"})
    assert values.number(name) == 7
    assert BrokerValues(settings=Settings(), shared={name: "9"}).number(name) == 9
    setting = next(setting for setting in SETTINGS if setting.name == name)
    assert BrokerValues(settings=Settings()).number(name) == setting.default
