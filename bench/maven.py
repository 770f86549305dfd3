"""Jars of Maven artefacts, fetched once into the user's cache.

Ivy fetches them, which Spark brings along: nothing but Java has to be installed. The folder appears
under its final name only when it is complete, so a fetch that was cut short is repeated, never
trusted.
"""

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.user_cache import cache_folder

FETCH_SECONDS_MAX = 600

# No address: the default of Ivy's Maven-compatible resolver is Maven Central.
_SETTINGS = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
)


class MissingTool(Exception):
    """Something that this machine lacks and cannot fetch, such as Java, Spark or a jar. The
    message is one line for the user.
    """


class Artefact(NamedTuple):
    """Maven's coordinates of a jar."""

    group: str
    name: str
    version: str


def jars_folder(title: str, artefacts: Sequence[Artefact], *, with_needed: bool = True) -> Path:
    """Return the folder with the jars of these artefacts and, by default, of all of their
    dependencies, downloaded now if this machine does not have them yet. It is kept by its title,
    which is different for each set and version.

    Raises MissingTool if Java or Spark is missing, or the artefacts cannot be fetched.
    """
    if shutil.which("java") is None:
        raise MissingTool(f"{title} needs Java 17 or newer: apt-get install default-jre-headless")
    cache = cache_folder()
    jars = cache / title
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, jars, _module(artefacts, with_needed=with_needed))
    return jars


def _fetch(cache: Path, jars: Path, module: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work_name:
        work = Path(work_name)
        (work / "ivy.xml").write_text(module)
        (work / "settings.xml").write_text(_SETTINGS)
        try:
            done = subprocess.run(
                [*_ivy(), "-cache", str(work / "cache"), "-types", "jar", "bundle"],
                cwd=work,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MissingTool(
                f"fetching the jars of {jars.name} did not finish within {FETCH_SECONDS_MAX} s"
            ) from error
        if done.returncode != 0 or not (work / "jars").is_dir():
            lines = [line for line in done.stdout.splitlines() if "UNRESOLVED" in line.upper()]
            raise MissingTool(
                f"cannot fetch the jars of {jars.name}: {lines[-1] if lines else done.stderr}"
            )
        try:
            (work / "jars").rename(jars)
        except OSError:
            if not jars.is_dir():  # otherwise another process was quicker: its jars are as good
                raise


def _ivy() -> list[str]:
    """Return the command that fetches: Ivy, from among Spark's own jars."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    found = sorted(Path(places[0]).glob("jars/ivy-*.jar")) if places else []
    if not found:
        raise MissingTool("fetching jars needs pyspark: make install")
    files = ["-settings", "settings.xml", "-ivy", "ivy.xml"]
    pattern = "jars/[artifact]-[revision](-[classifier]).[ext]"
    return ["java", "-jar", str(found[-1]), *files, "-retrieve", pattern]


def _module(artefacts: Sequence[Artefact], *, with_needed: bool) -> str:
    wanted = 'conf="*->runtime,master"' if with_needed else 'conf="*->master" transitive="false"'
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" {wanted}/>'
        for group, name, version in artefacts
    )
    return (
        '<ivy-module version="2.0"><info organisation="lakehead" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
