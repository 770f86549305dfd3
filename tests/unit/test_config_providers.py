"""References in settings: Kafka's grammar, one clear line for each fault, and no value in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.cli.host_settings import read_settings
from lakehead.broker.configs.entries import BrokerValues, broker_entries
from lakehead.broker.setting_sources import Setting, load
from lakehead.storage.config_providers import ConfigProviders, Secret, parse_properties
from lakehead.storage.errors import SettingsError

MARK = "s3cr3t-m4rk"
ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:lake/broker-AbCdEf"


def providers(environment: Mapping[str, str] | None = None) -> ConfigProviders:
    return ConfigProviders(environment or {}, no_aws)


def no_aws(*_: Any) -> Mapping[str, Any]:
    raise AssertionError("AWS was called")


def test_values_come_from_files_folders_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("# a\nname = lake\npass\\:word: a=b c\n")
    (tmp_path / "token").write_text("abc\n")
    found = providers({"RACK": "a", "EMPTY": ""})
    for text, value in (
        (f"${{file:{tmp_path}/secrets.properties:name}}", "lake"),
        (f"x-${{directory:{tmp_path}:token}}-${{env:RACK}}", "x-abc-a"),
        ("${env:EMPTY}", ""),
        ("${env::RACK}", "a"),
        ("no reference: {node.id} ${ } $x", "no reference: {node.id} ${ } $x"),
    ):
        assert found.resolved("broker.rack", text) == value, text
    assert found.resolved("port", 5) == 5


def test_a_value_is_not_read_for_references_again() -> None:
    assert providers({"A": "${env:B}", "B": "b"}).resolved("x", "${env:A}") == "${env:B}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${env:NONE}", "broker.rack: .*env:NONE.*: the environment has no such variable"),
        ("${vault:a:b}", "provider 'vault' is not one of file, directory, env"),
        ("${file:/none/such:key}", "cannot read the file: No such file"),
        ("${file:key}", "write .*file:/path:key"),
        ("${directory:/etc:../etc/passwd}", "the name of a file in it"),
        ("${directory:/etc:..}", "the name of a file in it"),
        ("${file:/etc/hostname\x00:x}", "cannot read the file"),
        ("${directory:/dev:zero}", "more than 1048576 bytes"),
    ],
)
def test_a_reference_that_leads_nowhere_is_one_line(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        providers().resolved("broker.rack", text)


def test_secrets_of_aws_are_read_once_with_the_region_of_their_arn() -> None:
    calls = []

    def aws(service: str, region: str, operation: str, given: Mapping[str, str]) -> Any:
        calls.append((service, region, operation, dict(given)))
        if service == "ssm":
            return {"Parameter": {"Value": "p"}}
        return {"SecretString": json.dumps({"password": MARK, "port": 9})}

    found = ConfigProviders({}, aws)
    assert found.resolved("x", f"${{secretsmanager:{ARN}:password}}") == MARK
    assert found.resolved("x", f"${{secretsmanager:{ARN}:port}}") == "9"
    assert json.loads(str(found.resolved("x", "${secretsmanager:lake}")))["port"] == 9
    assert found.resolved("x", "${ssm::/lake/key}") == "p"
    parameter = "arn:aws:ssm:us-east-1:123456789012:parameter/lake/key"
    assert found.resolved("x", f"${{ssm:{parameter}}}") == "p"
    assert [call[:3] for call in calls] == [
        ("secretsmanager", "eu-central-1", "get_secret_value"),
        ("secretsmanager", "", "get_secret_value"),
        ("ssm", "", "get_parameter"),
        ("ssm", "us-east-1", "get_parameter"),
    ]
    assert calls[0][3] == {"SecretId": ARN}
    assert calls[2][3] == {"Name": "/lake/key", "WithDecryption": True}
    with pytest.raises(SettingsError, match="no such field") as refused:
        found.resolved("x", f"${{secretsmanager:{ARN}:pasword}}")
    assert MARK not in str(refused.value)


def test_any_setting_of_any_source_may_be_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "lakehead.toml"
    file.write_text('log.retention.hours = "${env:HOURS}"\nbroker.rack = "${env:RACK}"\n')
    environment = {"HOURS": "2", "RACK": "a", "LAKEHEAD_PORT": "${env:PORT}", "PORT": "7"}
    settings = load({"node.id": "${env:ID}"}, {**environment, "ID": "3"}, str(file))
    assert (settings.log_retention_ms, settings.port, settings.node_id) == (7_200_000, 7, 3)
    assert settings.broker_rack == "a"
    with pytest.raises(SettingsError, match=r"\${env:HOURS}: the environment has no such variable"):
        read_settings(file, {})


def test_a_value_from_elsewhere_is_shown_nowhere() -> None:
    settings = load({"broker.rack": "${env:RACK}"}, {"RACK": MARK})
    assert settings.broker_rack == MARK
    assert MARK not in repr(settings)
    entry = next(
        entry
        for entry in broker_entries(BrokerValues(settings=settings))
        if entry.name == "broker.rack"
    )
    assert entry.is_sensitive  # then DescribeConfigs has null
    for name in ("port", "log.level", "compression.type", "auto.create.topics.enable"):
        with pytest.raises(SettingsError, match=name) as refused:
            load({name: "${env:RACK}"}, {"RACK": MARK})
        assert MARK not in str(refused.value)


def test_the_representation_of_a_secret_hides_it() -> None:
    assert f"{[Secret(MARK)]!r}" == "[[hidden]]"
    secret = Setting(
        name="a.key",
        field="a_key",
        kind="str",
        default="",
        unit="",
        doc="A key.",
        least=None,
        most=None,
        choices=(),
        is_secret=True,
    )
    assert repr(secret.parse(MARK)) == "[hidden]"
    assert secret.parse(MARK) == MARK


@given(st.dictionaries(st.text("ab=: #!\\\tü\n", min_size=1), st.text("ab=: #!\\\tü\n")))
def test_properties_are_read_as_java_writes_them(pairs: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        for plain, code in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("ü", "\\u00fc")):
            text = text.replace(plain, code)
        return "".join(f"\\{one}" if one in "=: #!" else one for one in text)

    lines = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in pairs.items())
    assert parse_properties(lines) == pairs


def test_properties_take_every_separator_and_long_lines() -> None:
    text = "a b\r\nc=\n d : e \n!no\nlong=1,\\\n   2\nf\ng\\=h=i\\"
    assert parse_properties(text) == {
        "a": "b",
        "c": "",
        "d": "e ",
        "long": "1,2",
        "f": "",
        "g=h": "i",
    }
