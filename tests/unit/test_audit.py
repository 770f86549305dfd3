"""`make audit` tells apart: nothing found, something found, and not looked up."""

import subprocess

import pytest

from tests.audit import FOUND, UNREACHABLE, report

TABLE = "Name  Version ID\n----- ------- ----\nthing 1.0     PYSEC-1\n"
WARNING = "WARNING:pip_audit._cli:Consider using a tool\n"


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr", "status", "words"),
    [
        (0, "", "No known vulnerabilities found\n", 0, "no known vulnerabilities"),
        (1, TABLE, "Found 1 known vulnerability\n", FOUND, "PYSEC-1"),
        (1, "", f"{WARNING}ERROR:pip_audit._cli:a: not found\n", UNREACHABLE, "a: not found"),
        (1, "", "ConnectionError: no route\n", UNREACHABLE, "cannot be reached"),
        (1, "", "", UNREACHABLE, "cannot be reached"),
    ],
)
def test_the_status_and_one_line_tell_the_outcome(
    returncode: int,
    stdout: str,
    stderr: str,
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = subprocess.CompletedProcess(["pip-audit"], returncode, stdout, stderr)
    assert report("requirements/base.txt", done) == status
    shown = capsys.readouterr().out
    assert words in shown
    assert shown.count("\n") == (1 if status != FOUND else 4)
    assert "WARNING" not in shown
