"""The settings by which commands reach nodes with TLS."""

import os
import threading
from pathlib import Path

import pytest

from lakehead.broker.cli.cluster import COMMAND_CONFIG
from lakehead.broker.cli.node_network import _tcp_network
from lakehead.broker.security.security_protocol import SecurityProtocol
from tests.support.command_line import CommandLine


def test_settings_of_a_client_may_come_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `--command-config <(decrypt client.properties)`: they can be read once."""
    assert CommandLine(monkeypatch, capsys)("certs", str(tmp_path)).status == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = (tmp_path / "client.properties").read_text()
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    monkeypatch.setenv(COMMAND_CONFIG, str(pipe))
    assert _tcp_network({SecurityProtocol.SSL}) is not None
    writer.join(10)
