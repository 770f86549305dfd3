"""`lakehead certs`: the names in certificates."""

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    "host",
    [
        *("a b", "", "a,b", "node:9092", "[::1]", "https://node", "-node", "a..b", "knoten.ö"),
        *("256.1.1.1", "1.2.3", "node.", "*", f"{'a' * 64}.example", ".".join(["abcd"] * 60)),
    ],
)
def test_what_is_neither_a_host_name_nor_an_address_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    folder = tmp_path / "certs"
    refused = CommandLine(monkeypatch, capsys).fails("certs", str(folder), "--host", host)
    assert "is neither a host name nor an address" in refused
    assert not folder.exists()


def test_host_names_and_addresses_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ("node", "node_1.orders", "*.example.com", "3com.example", "10.0.0.7", "fd00::7")
    named = [text for host in hosts for text in ("--host", host)]
    done = CommandLine(monkeypatch, capsys)("certs", str(tmp_path), *named)
    assert done.status == 0, done
