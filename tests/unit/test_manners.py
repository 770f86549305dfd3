"""Manners of the command line: examples, completion, colours, confirmations, JSON."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lakehead.broker.cli.app import app
from lakehead.broker.cli.commands import COMMANDS
from lakehead.broker.cli.confirmation import confirm
from lakehead.broker.cli.examples import EXAMPLES
from lakehead.storage.errors import SettingsError
from tests.support.command_line import CommandLine
from tests.support.parsed_command import parsed

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from lakehead.broker.cli import run; run()"


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TERM", "dumb")
    return CommandLine(monkeypatch, capsys)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name))


def test_every_command_has_examples() -> None:
    """A new command needs some in lakehead/broker/cli/examples.py."""
    names = [name for name, _ in leaves(typer.main.get_command(app))]
    assert sorted(names) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_commands_that_there_are(name: str) -> None:
    for example in EXAMPLES[name]:
        found, _ = parsed(example.command)
        assert found == name
        assert not example.purpose.endswith(".")


def test_help_shows_each_example_whole(lakehead: CommandLine) -> None:
    page = lakehead("topics", "create", "--help").out
    for example in EXAMPLES["topics create"]:
        assert f"  # {example.purpose}\n  {example.command}\n" in page


def complete(words: str, shell: str = "bash") -> list[str]:
    """The completions of `words` in a shell, and the modules that were loaded for them."""
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"{PROGRAM}"
    )
    environment = {
        **os.environ,
        "_LAKEHEAD_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "lakehead.broker.cli.topics" not in done.stderr
    return done.stdout.split()


def test_names_are_completed_without_a_module_of_a_command() -> None:
    assert complete("lakehead to") == ["topics", "top"]
    assert set(complete("lakehead ")) == {name for group in COMMANDS.values() for name in group}


def test_options_are_completed() -> None:
    assert "--retention-hours" in complete("lakehead vacuum --re")


def test_the_script_for_a_shell_is_shown(lakehead: CommandLine) -> None:
    options = lakehead("--help").out
    assert "--install-completion" in options
    assert "--show-completion" in options


CONFIRMED = [
    ("topics delete t -b 127.0.0.1:1", "Delete topic t"),
    ("features upgrade", "Raise metadata.version"),
    ("sweep", "Delete the objects"),
    ("rebuild-catalog --replace", "Replace metadata"),
    ("forget orders --key k", "Remove every record"),
    ("forget orders --check 1 --old-versions", "Delete the old versions"),
    ("rebuild-table orders --without-history", "Lose the rows"),
]


@pytest.mark.parametrize(("command", "question"), CONFIRMED)
def test_without_a_terminal_and_without_yes_nothing_is_deleted(
    lakehead: CommandLine, tmp_path: Path, command: str, question: str
) -> None:
    (tmp_path / "store" / "meta").mkdir(parents=True)
    words = command.split()
    if words[0] != "topics":
        words += ["--path", str(tmp_path / "store" if words[0] == "rebuild-catalog" else tmp_path)]
    line = lakehead.fails(*words)
    assert line.startswith(question)
    assert line.endswith("There is no terminal to confirm at: give --yes")
    assert not list((tmp_path / "store" / "meta").iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "sweep --dry-run",
        "rebuild-catalog --dry-run --replace",
        "forget orders --check 1",
        "rebuild-table orders",
        "vacuum",
        "apply-retention",
    ],
)
def test_no_confirmation_where_nothing_is_lost_beyond_what_was_declared(
    lakehead: CommandLine, tmp_path: Path, command: str
) -> None:
    (tmp_path / "store" / "meta").mkdir(parents=True)
    assert "to confirm at" not in lakehead(*command.split(), "--path", str(tmp_path)).err


@pytest.mark.parametrize(("key", "is_done"), [("y", True), ("n", False), ("", False)])
def test_a_user_confirms_at_the_terminal(
    monkeypatch: pytest.MonkeyPatch, key: str, is_done: bool
) -> None:
    main, terminal = pty.openpty()
    os.write(main, f"{key}\n".encode())
    with os.fdopen(terminal, "r") as given:
        monkeypatch.setattr(sys, "stdin", given)
        if is_done:
            confirm("Delete it?", yes=False)
        else:
            with pytest.raises(SettingsError, match="nothing was changed"):
                confirm("Delete it?", yes=False)
    os.close(main)


FROM = "from lakehead.broker.cli.progress import ByteProgress, waiting\n"
SHOWN = {
    "a bar": f"{FROM}with ByteProgress('verify') as bar: bar.update(1, 2)",
    "a wait": f"{FROM}with waiting('verify'): pass",
}


@pytest.mark.parametrize("kind", SHOWN)
def test_progress_is_shown_at_a_terminal_and_nowhere_else(kind: str) -> None:
    command = [sys.executable, "-c", SHOWN[kind]]
    piped = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert (piped.stdout, piped.stderr) == (b"", b"")
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, check=True)
    os.close(terminal)
    assert b"verify" in os.read(main, 65536)
    os.close(main)


@pytest.mark.parametrize(("width", "is_table"), [("60", False), ("120", True)])
def test_a_terminal_too_narrow_for_many_columns_gets_a_line_for_each_field(
    width: str, is_table: bool
) -> None:
    script = (
        "from lakehead.broker.cli.listing import show_rows\n"
        "columns = {f'f{n}': f'HEADING-{n}' for n in range(9)}\n"
        "show_rows([dict.fromkeys(columns, 'value')] * 2, columns, False)\n"
    )
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": width}
    subprocess.run([sys.executable, "-c", script], stdout=terminal, env=environment, check=True)
    os.close(terminal)
    lines = os.read(main, 65536).decode().split("\r\n")
    os.close(main)
    assert len(lines) == (4 if is_table else 20)
    assert any(line.split() == ["HEADING-3", "value"] for line in lines) is not is_table
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert not re.search(rb" \n", piped.stdout)


@pytest.mark.parametrize("variable", ["NO_COLOR", "ANY_OTHER"])
def test_no_color_is_heeded(variable: str) -> None:
    """https://no-color.org: bold text is not a colour."""
    script = (
        "from lakehead.broker.cli.listing import output_console\n"
        "output_console().print('a bar', style='bold cyan')\n"
    )
    environment = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", variable: "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert ("36m" in done.stdout) is (variable != "NO_COLOR")


STATUSES = ROOT / "docs" / "cli.md"


def test_statuses_are_those_of_the_page(lakehead: CommandLine, tmp_path: Path) -> None:
    documented = dict(re.findall(r"^\| (\d+) \| (.+) \|$", STATUSES.read_text(), re.MULTILINE))
    assert set(documented) == {"0", "1", "2", "130"}
    assert lakehead("--version").status == 0
    assert lakehead("topics", "list", "--path", str(tmp_path)).status == 1
    assert lakehead("topics", "list", "--bogus").status == 2


def test_a_size_that_is_none_names_the_form(lakehead: CommandLine) -> None:
    assert "write a number of bytes, or 64KiB" in lakehead.fails("start", "--wal.size", "10x")


def test_a_command_leaves_no_folder_of_hypothesis_behind(tmp_path: Path) -> None:
    """kio imports hypothesis where it is installed, which makes a folder where it is imported."""
    (tmp_path / "store" / "meta").mkdir(parents=True)
    command = [sys.executable, "-c", PROGRAM, "verify", "--path", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


CLOSED = """
import os, sys
from lakehead.broker.cli.process import run
sys.argv = ["lakehead", "settings", "list", "retention"]
run()
"""

CLOSED_IN_CHILD = """
import subprocess, sys
from lakehead.broker.cli import process
program = "import os; [os.fstat(number) for number in range(3)]"
process.main = lambda: sys.exit(subprocess.run([sys.executable, "-c", program]).returncode)
process.run()
"""


def test_a_command_without_standard_streams_ends_in_order(tmp_path: Path) -> None:
    """cron and daemons close them: the next socket of the process got the number of one."""
    for program in (CLOSED, CLOSED_IN_CHILD):
        script = f"exec {sys.executable} -c '{program}' <&- >&- 2>&-"
        assert subprocess.run(["sh", "-c", script], check=False, timeout=60).returncode == 0


def test_a_folder_that_was_deleted_is_named(
    tmp_path: Path, lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current folder was deleted" in lakehead.fails("topics", "list")


def test_an_interrupted_statement_has_the_status_of_the_page(
    tmp_path: Path, lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "store" / "meta").mkdir(parents=True)
    monkeypatch.setattr("lakehead.lake.sql.shell.TopicViews", lambda *_: None)
    monkeypatch.setattr("lakehead.lake.sql.shell.run_direct", interrupted)
    run = lakehead("sql", "--path", str(tmp_path), "--no-delta", "-e", "SELECT 1")
    assert (run.status, run.err.strip()) == (130, "stopped")


def test_a_folder_that_cannot_be_written_comes_with_the_next_step(
    tmp_path: Path, lakehead: CommandLine
) -> None:
    (tmp_path / "file").touch()
    line = lakehead.fails("start", "--data", str(tmp_path / "file"), "--port", "0")
    assert line.endswith("Not a directory: a part of this path is a file: name another folder")
