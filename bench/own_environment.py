"""Tools that pin too much to live beside us have environments of their own, in the user's cache,
made at the first use from a file of hashed requirements.
"""

import fcntl
import hashlib
import sys
import venv
from pathlib import Path

from bench.user_cache import StepFailed, cache_folder, run_step

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
_INSTALL_S = 3600
"""Limit of an installation: a minute where nothing else runs, and a busy machine has 2 % of a core
for the lowest priority.
"""


class NotInstalled(Exception):
    """A tool cannot be installed here. The message says why."""


def environment_of(tool: str, requirements: str) -> Path:
    """Return the folder of an environment with what `requirements/<requirements>.txt` lists; the
    first call on a machine makes it. Raises NotInstalled.
    """
    wanted = REQUIREMENTS / f"{requirements}.txt"
    made_for = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"{tool}-{made_for}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of several workers installs, the others wait
        if not (folder / "installed").exists():
            venv.create(folder, with_pip=True)
            _install(folder / "bin" / "python", wanted, tool)
            (folder / "installed").touch()
    return folder


def _install(program: Path, wanted: Path, tool: str) -> None:
    """Install without bytecode, which is most of the work: imports make what they need of it."""
    command: list[str | Path] = [
        program,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    try:
        run_step([*command, "--no-compile", "--require-hashes", "-r", wanted], _INSTALL_S)
    except StepFailed as error:
        raise NotInstalled(f"{tool} cannot be installed: {error}") from None
