"""A connector's file: what is wrong is one line that names file and key."""

import re
import tomllib
from pathlib import Path

import pytest

from lakehead.connectors.connector import Connector
from lakehead.connectors.runtime.settings import checked_settings, load_settings
from lakehead.connectors.settings import ConnectorSettings
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from tests.support.command_line import CommandLine

GOOD = """
name = "orders"
[kafka]
bootstrap.servers = "127.0.0.1:1"
sasl.password = "${env:LAKEHEAD_TEST_SECRET}"
[source]
type = "files"
path = "in"
[sink]
type = "topic"
topic = "orders"
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("LAKEHEAD_TEST_SECRET", "hush")
    return CommandLine(monkeypatch, capsys)


def test_the_file_is_read_with_variables(tmp_path: Path, command: CommandLine) -> None:
    (tmp_path / "c.toml").write_text(GOOD)
    settings = load_settings(tmp_path / "c.toml", ConnectorSettings)
    assert settings.kafka["sasl"] == {"password": "hush"}
    assert settings.run.transaction_seconds == 5.0
    Connector(settings, SystemClock(), name="c.toml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[sink]", "[snk]", "object contains unknown field `snk`"),
        ('"orders"\n[kafka]', '"or ders"\n[kafka]', "name: expected `str` matching regex"),
        ('path = "in"', "path = 1", "source.path: expected `str`, got `int`"),
        ('"files"', '"file"', "source.type: invalid value 'file'"),
        ('"in"', '"in"\nkeys = ["a"]', "source: object contains unknown field `keys`"),
        ('"in"', '"in"\n[run]\npoll_seconds = 0', "run.poll_seconds: expected `float` > 0.0"),
        ("LAKEHEAD_TEST_SECRET", "NOT_SET", "sasl.password: the environment has no NOT_SET"),
        ("bootstrap", "boot", "kafka: bootstrap.servers is missing"),
        ("sasl.password", "group.id", "kafka: group.id is set by the connector itself"),
        ("[sink]", "[sink", "is not TOML: "),
        ('topic = "orders"', 'topic = "o"\n[sink.kafka]\na.b = "c"', "sink.kafka: only for copies"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, command: CommandLine, old: str, new: str, said: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(GOOD.replace(old, new, 1))
    line = command.fails("connect", "run", str(path))
    assert line.startswith(str(path))
    assert said in line


def test_the_examples_of_the_page_are_connectors() -> None:
    page = Path(__file__).parents[2] / "docs" / "connect.md"
    examples = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    kinds = []
    for text in examples:
        tables = tomllib.loads(text.replace("${env:KAFKA_PASSWORD}", "x"))
        settings = checked_settings(tables, ConnectorSettings, "docs/connect.md")
        Connector(settings, SystemClock(), name="docs/connect.md")
        kinds.append(type(settings.source).__name__)
    assert kinds == ["FilesSettings", "DeltaSettings", "TopicsSettings"]


def test_a_file_that_is_not_there(command: CommandLine) -> None:
    assert command.fails("connect", "run", "nowhere.toml").startswith("cannot read nowhere.toml")


def test_a_copy_into_itself_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace('type = "files"\npath = "in"', 'type = "topic"\ntopics = ["orders"]')
    path = tmp_path / "c.toml"
    path.write_text(text.replace("sasl.password", "#"))
    settings = load_settings(path, ConnectorSettings)
    with pytest.raises(SettingsError, match="cannot be copied into itself"):
        Connector(settings, SystemClock(), name="c.toml")
