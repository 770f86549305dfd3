"""Credentials of a store for executors of Spark, not as arguments of a process, which every user of
the machine can read.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


@contextmanager
def executor_properties(storage: Mapping[str, str]) -> Iterator[str | None]:
    """Yield a properties file, for this user's eyes, that sets these variables for executors, while
    a block runs; None without any.
    """
    if not storage:
        yield None
        return
    descriptor, name = tempfile.mkstemp(prefix="lakehead-", suffix=".properties")
    try:
        with os.fdopen(descriptor, "w", encoding="latin-1", errors="backslashreplace") as file:
            for variable, value in storage.items():
                file.write(f"spark.executorEnv.{variable}={_escaped(value)}\n")
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def submit_arguments(properties: str | None) -> Iterator[None]:
    """Have a JVM that is started while the block runs load a properties file, beside its own."""
    if properties is None:
        yield
        return
    before = os.environ.get(_ARGUMENTS)
    more = before or "pyspark-shell"
    os.environ[_ARGUMENTS] = f"--load-spark-defaults --properties-file {properties} {more}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def _escaped(value: str) -> str:
    """Return a value as java.util.Properties reads it."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped
