"""Settings: precedence, values, and one clear line for each mistake."""

from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.broker import setting_sources
from lakehead.broker.setting_sources import (
    SETTINGS,
    Setting,
    check_flags,
    load,
    unknown_variables,
)
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "lakehead.toml"
    file.write_text('node.id = 1\nport = 1001\n[upload]\nsize = "8MiB"\nage.ms = 5\n')
    environment = {"LAKEHEAD_PORT": "1002", "LAKEHEAD_NODE_ID": "2"}
    settings = load({"node.id": "3", "host": None}, environment, str(file))
    assert (settings.node_id, settings.port, settings.upload_size) == (3, 1002, 8 << 20)
    assert (settings.upload_age_ms, settings.host) == (5, "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("64m", 64 << 20), ("1 GiB", 1 << 30), ("67108864", 64 << 20)],
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert load({"wal.size": text}).wal_size == size


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"port": "x"}, "port: 'x' is not a whole number"),
        ({"port": "70000"}, "port: 70000 is more than 65535"),
        ({"wal.size": "1MiB"}, "wal.size: 1048576 is less than 67108864"),
        ({"node.id": "1k"}, "node.id: '1k' is not a whole number"),
        ({"auto.create.topics.enable": "perhaps"}, "'perhaps' is not true or false"),
        ({"no.such": "1"}, "unknown setting: no.such$"),
        ({"num.partitons": "3"}, r"num.partitons \(did you mean num.partitions\?\)"),
        ({"log.message.timestamp.type": "Never"}, "must be one of: CreateTime, LogAppendTime"),
        ({"compression.type": "brotli"}, "must be one of: uncompressed, zstd"),
        ({"log.cleanup.policy": "shred"}, "must be one of: compact, delete"),
        ({"log.level": "verbose"}, "log.level: 'verbose' is not one of: debug, info, warning"),
    ],
)
def test_a_mistake_is_one_clear_line(flags: dict[str, str], line: str) -> None:
    with pytest.raises(SettingsError, match=line):
        load(flags)


def test_a_file_that_is_missing_or_no_toml_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load(file=str(tmp_path / "none"))
    (tmp_path / "bad").write_text("= 1")
    with pytest.raises(SettingsError, match="is not TOML"):
        load(file=str(tmp_path / "bad"))


def test_every_setting_is_described_and_its_default_is_valid() -> None:
    assert load() == Settings()
    for setting in SETTINGS:
        assert setting.doc.endswith("."), setting.name
        assert setting.parse(setting.default) == setting.default


def test_a_misspelt_variable_is_reported_with_the_setting_it_resembles() -> None:
    environment = {
        "LAKEHEAD_NUM_PARTITONS": "3",
        "LAKEHEAD_XYZZY": "1",
        "LAKEHEAD_NUM_PARTITIONS": "3",
        "LAKEHEAD_CONFIG": "file",
        "OTHER": "1",
        # As Kubernetes sets them for a Service.
        "LAKEHEAD_SERVICE_HOST": "10.0.0.1",
        "LAKEHEAD_SERVICE_PORT_KAFKA": "9092",
        "LAKEHEAD_PORT_9092_TCP_ADDR": "10.0.0.1",
    }
    near, unlike = unknown_variables(environment)
    assert near.startswith("the environment's LAKEHEAD_NUM_PARTITONS is not a setting")
    assert near.endswith("did you mean LAKEHEAD_NUM_PARTITIONS?")
    assert unlike == "the environment's LAKEHEAD_XYZZY is not a setting"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_no_setting_is_reported_as_unknown(setting: Setting) -> None:
    assert unknown_variables({setting.environment: ""}) == []


def test_a_secret_is_not_taken_from_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = replace(SETTINGS[0], is_secret=True)
    monkeypatch.setitem(setting_sources._BY_NAME, secret.name, secret)
    with pytest.raises(SettingsError, match=f"{secret.name}: a command line is shown") as refused:
        check_flags({secret.name: "s3cr3t", "port": "1"})
    assert "s3cr3t" not in str(refused.value)
    check_flags({secret.name: "${file:/etc/lakehead/secrets:key}", "port": "1"})
    with pytest.raises(SettingsError):
        check_flags({secret.name: "${file:/a:b}s3cr3t"})
