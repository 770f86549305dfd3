"""`rdkafka_performance`, built once from librdkafka's sources and kept in the user's cache.

The crate `rdkafka-sys` carries these sources whole, so that cargo fetches them.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.maven import MissingTool
from bench.user_cache import StepFailed, built_once, cargo, run_step

CRATE_VERSION = "4.10.0+2.12.1"
VERSION = CRATE_VERSION.partition("+")[2]
"""Of librdkafka."""
_BUILD_S = 1800.0
_MANIFEST = f"""\
[package]
name = "sources"
version = "0.1.0"
edition = "2021"
[dependencies]
rdkafka-sys = "={CRATE_VERSION.partition("+")[0]}"
"""


def program() -> Path:
    """Return the executable; the first call on a machine builds it, in minutes.

    Raises MissingTool if cargo, make or a C compiler is missing, or a step fails.
    """
    return built_once(f"librdkafka-{VERSION}", "rdkafka_performance", _build)


def _build(folder: Path) -> Path:
    """Fetch and compile in a folder, which may have the rest of a build that was cut short."""
    rust = cargo()
    if rust is None or not (shutil.which("make") and shutil.which("gcc")):
        raise MissingTool("rdkafka_performance needs cargo, make and gcc to be built")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "Cargo.toml").write_text(_MANIFEST)
    (folder / "src" / "lib.rs").touch()
    _step([rust, "vendor", "--quiet", "vendor"], folder)
    sources = folder / "vendor" / "rdkafka-sys" / "librdkafka"
    _step(["./configure", "--disable-debug-symbols", "--disable-curl"], sources)
    _step(["make", f"-j{os.cpu_count()}", "libs"], sources)
    _step(["make", "-C", "examples", "rdkafka_performance"], sources)
    return sources / "examples" / "rdkafka_performance"


def _step(command: Sequence[str], folder: Path) -> None:
    try:
        run_step(command, _BUILD_S, folder=folder)
    except StepFailed as error:
        raise MissingTool(f"librdkafka: {command[0]}: {error}") from None
