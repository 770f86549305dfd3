"""A node at an IPv6 address: what it prints is what clients take."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bench.process import free_port
from tests.support.command_line import CommandLine


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 on this machine")


def test_a_printed_address_of_ipv6_is_one_that_clients_take(
    tmp_path: Path, lakehead: CommandLine
) -> None:
    page = free_port()
    command = [sys.executable, "-m", "lakehead", "start", "--data", str(tmp_path)]
    command += ["--host", "::1", "--port", "0", "--wal.size", "64m"]
    command += ["--metrics.host", "::1", "--metrics.port", str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            found = re.search(r"lakehead is ready at (\[::1\]:\d+),", node.stdout.readline())
            assert found is not None
            assert lakehead("topics", "create", "orders", "-b", found[1]).status == 0
            (row,) = lakehead("nodes", "--json", "--path", str(tmp_path)).out.splitlines()
            assert json.loads(row)["address"] == found[1]
            with urllib.request.urlopen(f"http://[::1]:{page}/ready", timeout=10) as response:
                assert response.status == 200
        finally:
            node.terminate()
