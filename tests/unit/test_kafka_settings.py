"""A file of settings that was made for Kafka's brokers: what is taken, passed over, and refused."""

from pathlib import Path

import pytest

from lakehead.broker.configs.definition import Effect
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS
from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS
from lakehead.broker.network.connection_limits import check_limits
from lakehead.broker.setting_sources import SETTINGS, load, without_effect
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError


def of(tmp_path: Path, text: str) -> Settings:
    return load(file=written(tmp_path, text))


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.toml"
    path.write_text(text)
    return str(path)


def test_what_has_no_effect_is_passed_over_and_named(tmp_path: Path) -> None:
    text = """
        "num.io.threads" = 8
        "replica.lag.time.max.ms" = 1000
        "num.partitions" = 7
        "listeners" = "PLAINTEXT://:9092"
    """
    assert of(tmp_path, text) == Settings(num_partitions=7, listeners="PLAINTEXT://:9092")
    passed_over = without_effect(written(tmp_path, text))
    assert passed_over == ["num.io.threads", "replica.lag.time.max.ms"]
    assert without_effect(None) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"authorizer.class.name" = "x.Y"', "authorizer.class.name: 'x.Y' is not one of: org"),
        ('"process.roles" = "broker"', "process.roles: Said with data"),
        ('"log.dirs" = "/var/kafka"', "log.dirs: Said with data"),
        ('"metric.reporters" = "x.Y"', "metric.reporters: Names of Java classes"),
        ('"num.io.treads" = 8', "unknown setting: num.io.treads"),
        ('"log.retention.ms" = 0', "log.retention.ms: .* must not be 0"),
        ('"log.retention.hours" = 0', "log.retention.ms: .* must not be 0"),
        ('"log.retention.hours" = "soon"', "log.retention.hours: 'soon' is not a whole number"),
    ],
)
def test_what_a_node_cannot_do_is_refused_with_the_reason(
    tmp_path: Path, text: str, line: str
) -> None:
    with pytest.raises(SettingsError, match=line):
        of(tmp_path, text)


def test_a_default_of_topics_that_is_no_setting_is_set_on_a_running_cluster(tmp_path: Path) -> None:
    defaults = {config.synonym for config in TOPIC_CONFIGS.values()}
    for name in defaults - {setting.name for setting in SETTINGS}:
        if name and KAFKA_CONFIGS[name].effect is Effect.HONOURED:
            with pytest.raises(SettingsError, match="set it for all brokers of a running cluster"):
                of(tmp_path, f'"{name}" = 5')


def test_a_cordon_is_set_on_a_running_broker(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"set it for a broker .* --entity-name ID"):
        of(tmp_path, '"cordoned.log.dirs" = "*"')


@pytest.mark.parametrize(
    ("text", "retention_ms"),
    [
        ('"log.retention.hours" = 2', 7_200_000),
        ('"log.retention.hours" = 2\n"log.retention.minutes" = 3', 180_000),
        ('"log.retention.hours" = 2\n"log.retention.ms" = 5', 5),
        ('"log.retention.minutes" = -1', -1),
    ],
)
def test_retention_is_read_in_any_of_kafkas_units(
    tmp_path: Path, text: str, retention_ms: int
) -> None:
    assert of(tmp_path, text).log_retention_ms == retention_ms


def test_limits_by_which_no_client_could_connect_are_refused() -> None:
    check_limits(1, "")
    check_limits(0, "10.0.0.7:100")
    for overrides in ("", " , "):
        with pytest.raises(SettingsError, match="0 shuts out all addresses"):
            check_limits(0, overrides)
