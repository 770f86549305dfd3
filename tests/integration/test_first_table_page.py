"""docs/first-table.md does what it says: its blocks are run, in their order."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.broker.cli.demonstration.broker_process import running_broker
from tests.support.parsed_command import shell_words

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-table.md"
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TIMEOUT_S = 120
_TRIES = 40


@pytest.mark.slow
def test_the_page_leads_to_a_table(tmp_path: Path) -> None:
    """All but the installation before and Spark's SQL at the end."""
    install, start, create, produce, watch, read, _ = _BLOCK.findall(PAGE.read_text())
    assert "pip install" in install[1]
    assert shell_words(start[1]) == ["lakehead", "start"]
    (tmp_path / "lakehead-data").mkdir()
    with running_broker(tmp_path / "lakehead-data") as address:

        def run(block: tuple[str, str]) -> str:
            kind, text = block
            command = ["-c", text.replace("localhost:9092", address)]
            if kind == "bash":
                command = ["-m", *shell_words(text.replace("\\\n", " "))]
                command += ["-b", address] if "topics" in command else []
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
                timeout=_TIMEOUT_S,
            )
            return done.stdout

        run(create)
        run(produce)
        for _ in range(_TRIES):
            if json.loads(run(("bash", "lakehead tables --json")))["files"]:
                break
        head, _ = run(watch).splitlines()
        assert {"BEHIND", "PROBLEM"} <= set(head.split())
        printed = re.findall(r"prints `(.+)`", PAGE.read_text())
        assert run(read).splitlines() == printed
