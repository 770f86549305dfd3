"""Kafka's tools, run one after the other in one JVM: each start of Java costs two seconds."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import MAIN_CLASSES, QUICK_START
from bench.process import ServerFailed, log_tail

SECONDS_MAX = 40
_DRIVER = Path(__file__).with_name("ToolsInOneJvm.java")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a run of a tool ended. Status -1: not at all, within SECONDS_MAX."""

    status: int
    output: str
    errors: str


class OneJvm:
    """A JVM that runs tools, from entry to a `with` to its exit; its own log goes to `log`.

    Raises MissingTool without Java or Kafka's jars.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, tool: str, arguments: Sequence[str], stdin: str = "") -> Ran:
        """Run a tool by the name of its script, to its end; raises ServerFailed if the JVM dies."""
        assert self._process is not None, "the JVM is not started"
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        call = {"main": MAIN_CLASSES[tool], "arguments": list(arguments)}
        asked.write(json.dumps({**call, "stdin": stdin, "seconds": SECONDS_MAX}) + "\n")
        asked.flush()
        answer = answers.readline()
        if not answer:
            raise ServerFailed(f"the JVM of the tools ended:\n{log_tail(self._log)}")
        return Ran(**json.loads(answer))

    def __enter__(self) -> Self:
        command = [
            "java",
            *QUICK_START,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", f"{jars_directory()}/*", str(_DRIVER)),
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
