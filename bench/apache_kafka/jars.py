"""The jars of Apache Kafka, fetched once into the user's cache.

They are Maven artefacts, and Ivy, which Spark brings along, fetches them: nothing but Java has to
be installed. Three are named, Ivy finds what these need. The folder appears under its final name
only when it is complete, so a fetch that was cut short is repeated, never trusted.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
SLF4J_VERSION = "1.7.36"
FETCH_SECONDS_MAX = 600

# No address: the default of Ivy's Maven-compatible resolver is Maven Central.
_SETTINGS = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
)

_ARTEFACTS = (
    ("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)


class MissingTool(Exception):
    """Java or Spark is not installed, or the jars cannot be fetched. The message is one line
    for the user.
    """


def jars_directory() -> Path:
    """Folder with Kafka's jars; fetched now if this machine does not have them yet.

    Raises MissingTool if Java or Spark is missing, or the artefacts cannot be fetched.
    """
    if shutil.which("java") is None:
        raise MissingTool(
            "Apache Kafka needs Java 17 or newer: apt-get install default-jre-headless"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakehead"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, jars)
    return jars


def _fetch(cache: Path, jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work_name:
        work = Path(work_name)
        (work / "ivy.xml").write_text(_module())
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
                f"fetching Apache Kafka's jars did not finish within {FETCH_SECONDS_MAX} s"
            ) from error
        if done.returncode != 0 or not (work / "jars").is_dir():
            lines = [line for line in done.stdout.splitlines() if "UNRESOLVED" in line.upper()]
            raise MissingTool(f"cannot fetch Kafka's jars: {lines[-1] if lines else done.stderr}")
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
        raise MissingTool("fetching Apache Kafka's jars needs pyspark: make install")
    files = ["-settings", "settings.xml", "-ivy", "ivy.xml"]
    pattern = "jars/[artifact]-[revision](-[classifier]).[ext]"
    return ["java", "-jar", str(found[-1]), *files, "-retrieve", pattern]


def _module() -> str:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="*->runtime,master"/>'
        for group, name, version in _ARTEFACTS
    )
    return (
        '<ivy-module version="2.0"><info organisation="lakehead" module="kafka-jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
