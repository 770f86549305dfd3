"""The user's cache, and how programs are built there once from their sources."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class StepFailed(Exception):
    """A command of a build failed. The message is the last line that it printed, or its limit."""


def cache_folder() -> Path:
    """Return Lakehead's folder in the user's cache (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakehead"


def built_once(name: str, program: str, build: Callable[[Path], Path]) -> Path:
    """Return a program in the cache's folder `name`. The first call on a machine builds it: `build`
    gets a folder to work in, and returns the program there. Raises what `build` raises.
    """
    folder = cache_folder() / name
    built = folder / program
    if built.exists():
        return built
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of several processes builds, the others wait
        if not built.exists():
            work = folder / "building"
            build(work).rename(built)
            shutil.rmtree(work)
    return built


def cargo() -> str | None:
    """Return Rust's cargo, which is on the path or where rustup puts it; None without it."""
    return shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")


def run_step(
    command: Sequence[str | Path],
    timeout_s: float,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command of a build, by default in the present folder and environment. Raises
    StepFailed.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"it did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise StepFailed(f"{done.stdout.strip().splitlines()[-1:]}")
