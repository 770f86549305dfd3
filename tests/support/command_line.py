"""The `lakehead` command in this process: arguments in, status and output out."""

import sys
from dataclasses import dataclass

import pytest

from lakehead.broker.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str


class CommandLine:
    """Calls the command as the console script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["lakehead", *arguments])
        self._capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        captured = self._capsys.readouterr()
        return Outcome(status=status, out=captured.out, err=captured.err)

    def fails(self, *arguments: str) -> str:
        """Call a command that must fail as users should see it; return its one line."""
        outcome = self(*arguments)
        lines = outcome.err.strip().splitlines()
        assert outcome.status == 1
        assert len(lines) == 1
        assert lines[0].startswith("lakehead: ")
        return lines[0].removeprefix("lakehead: ")
