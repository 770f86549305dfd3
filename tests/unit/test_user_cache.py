"""Programs in the user's cache: built once, whole or not there, with the reason of a failure."""

import sys
from pathlib import Path

import pytest

from bench.user_cache import StepFailed, built_once, run_step


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_program_is_built_once_and_nothing_of_the_build_stays(tmp_path: Path) -> None:
    builds = []

    def build(folder: Path) -> Path:
        builds.append(folder)
        folder.mkdir()
        (folder / "source").touch()
        (folder / "tool").touch()
        return folder / "tool"

    first = built_once("tool-1", "tool", build)
    assert built_once("tool-1", "tool", build) == first == tmp_path / "lakehead" / "tool-1" / "tool"
    assert len(builds) == 1
    assert {path.name for path in first.parent.iterdir()} == {"lock", "tool"}


def test_a_build_that_fails_leaves_no_program() -> None:
    def build(folder: Path) -> Path:
        run_step([sys.executable, "-c", "print('first'); print('last'); raise SystemExit(3)"], 60)
        return folder

    with pytest.raises(StepFailed, match=r"^\['last'\]$"):
        built_once("tool-1", "tool", build)


def test_a_step_beyond_its_limit_is_ended() -> None:
    with pytest.raises(StepFailed, match="it did not end within 1 s"):
        run_step([sys.executable, "-c", "import threading; threading.Event().wait()"], 1)
