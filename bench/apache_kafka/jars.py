"""The jars of Apache Kafka, fetched once by Maven into the user's cache.

A pom written at run time names three artefacts; Maven resolves the rest from whatever repositories
the machine is set up for. The folder appears under its final name only when it is complete, so a
fetch that was cut short is repeated, never trusted.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
SLF4J_VERSION = "1.7.36"
FETCH_SECONDS_MAX = 600

_ARTEFACTS = (
    ("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)


class MissingTool(Exception):
    """Java or Maven is not installed, or could not fetch. The message is one line for the user."""


def jars_directory() -> Path:
    """Folder with Kafka's jars; fetched now if this machine does not have them yet.

    Raises MissingTool if Java or Maven is missing, or Maven fails.
    """
    if shutil.which("java") is None:
        raise MissingTool(
            "Apache Kafka needs Java 17 or newer: apt-get install default-jre-headless"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakehead"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if not jars.is_dir():
        if shutil.which("mvn") is None:
            raise MissingTool("fetching Apache Kafka's jars needs Maven: apt-get install maven")
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, jars)
    return jars


def _fetch(cache: Path, jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work_name:
        work = Path(work_name)
        (work / "pom.xml").write_text(_pom())
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        try:
            done = subprocess.run(
                command,
                cwd=work,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MissingTool(
                f"Maven did not finish fetching Kafka within {FETCH_SECONDS_MAX} s"
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise MissingTool(f"Maven could not fetch Kafka: {lines[0] if lines else done.stderr}")
        try:
            (work / "jars").rename(jars)
        except OSError:
            if not jars.is_dir():  # otherwise another process was quicker: its jars are as good
                raise


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in _ARTEFACTS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>lakehead</groupId>"
        "<artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
