"""The libraries of Confluent's registry in a JVM, which judge schemas as they do there."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.maven import Artefact, MissingTool, jars_folder

_ARTEFACTS = (
    Artefact("org.apache.avro", "avro", "1.12.0"),
    Artefact("com.github.erosb", "everit-json-schema", "1.14.4"),
    Artefact("com.github.erosb", "json-sKema", "0.18.0"),
    Artefact("com.squareup.wire", "wire-schema-jvm", "5.3.1"),
)
_TITLE = "schema-judges-1"
"""Another number goes with other versions."""
_PROGRAM = Path(__file__).with_name("SchemaJudge.java")
_QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
_TIMEOUT_S = 600


def judged(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the verdict on each case, as SchemaJudge.java describes both.

    Raises MissingTool without Java or the jars, or if the JVM fails.
    """
    jars = jars_folder(_TITLE, _ARTEFACTS)
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
