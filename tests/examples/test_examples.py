"""Each program of examples/ does what it says. Those that need Spark are with the slow tests."""

import runpy
from pathlib import Path

import pytest

from tests.support.user_tests import ROOT, run_user_tests

EXAMPLES = ROOT / "examples"


def output(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a program prints, as if it were started by its one command."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_scan_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert output("scan_engines.py", capsys) == [
        "warmest, by DuckDB: ('Oslo', 40.3)",
        "means, by Polars: {'Kyiv': 15.6, 'Lima': 14.8, 'Oslo': 15.1, 'Pune': 15.1}",
        "newest, by pandas: [999, 499, 499]",
    ]


def test_database_changes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in output("database_changes.py", capsys) if "day " in line]
    assert lines == [
        "Monday [(1, 'Ann', '10.00'), (2, 'Bob', '0.50'), (3, 'Eve', '99.99')]",
        "Tuesday [(1, 'Ann', '12.25'), (30, 'Eve', '99.99')]",
    ]


@pytest.mark.slow
def test_own_app() -> None:
    done = run_user_tests(EXAMPLES / "own_app")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_flights_to_delta(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output("flights_to_delta.py", capsys)
    assert "topic and table agree: True" in lines
    assert [line.split()[:2] for line in lines if line.split()[:1] in (["EWR"], ["JFK"], ["LGA"])]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_word_count(capsys: pytest.CaptureFixture[str]) -> None:
    first = "{'the': 3, 'lake': 2, 'and': 1, 'river': 1}"
    then = "{'the': 4, 'lake': 2, 'and': 1, 'river': 1, 'sea': 1}"
    assert output("word_count.py", capsys) == [first, then, then]


def test_every_program_is_short_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    tests = Path(__file__).read_text()
    programs = [*EXAMPLES.glob("*.py"), EXAMPLES / "own_app"]
    assert len(programs) == 5
    for program in programs:
        assert f"examples/{program.name}" in listed
        assert f"def test_{program.stem}(" in tests
        for file in program.glob("*.py") if program.is_dir() else [program]:
            assert len(file.read_text().splitlines()) < 80
