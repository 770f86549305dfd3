"""Avro's Java library in a JVM, which judges schemas as it does in Confluent's registry."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.maven import Artefact, MissingTool, jars_folder

_AVRO_VERSION = "1.12.0"
_ARTEFACTS = (Artefact("org.apache.avro", "avro", _AVRO_VERSION),)
_PROGRAM = Path(__file__).with_name("AvroJudge.java")
_QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
_TIMEOUT_S = 600


def judged(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the verdict on each case, as AvroJudge.java describes both.

    Raises MissingTool without Java or the jars, or if the JVM fails.
    """
    jars = jars_folder(f"avro-{_AVRO_VERSION}", _ARTEFACTS)
    done = subprocess.run(
        ["java", *_QUICK_START, "-cp", f"{jars}/*", str(_PROGRAM)],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(cases):
        raise MissingTool(
            f"the JVM judged {len(lines)} of {len(cases)} cases: {done.stderr[-500:]}"
        )
    return [json.loads(line) for line in lines]
