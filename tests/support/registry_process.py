"""`lakehead registry` as a process, and calls to it as any HTTP client makes them."""

import atexit
import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.template_process import ForkedPython

ROOT = Path(__file__).resolve().parents[2]
_ANSWER_S = 60


class RegistryProcess:
    """One registry: started, asked, killed."""

    def __init__(self, bootstrap: str, topic: str, *flags: str) -> None:
        command = [
            *(sys.executable, "-m", "lakehead", "registry", "-b", bootstrap, "--port", "0"),
            *("--topic", topic, "--timeout-ms", "60000"),
        ]
        self.process = ForkedPython(
            [*command, *flags], jobs=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        assert self.process.stdout is not None
        found = re.search(r"ready at (\S+),", self.process.stdout.readline())
        assert found, f"the registry ended with status {self.process.wait(30)}"
        self.url = found[1]

    def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status and the answer, read as JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, method=method, data=data, headers=headers or {}
        )
        context = ssl._create_unverified_context() if self.url.startswith("https") else None
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def register(self, subject: str, schema: Any, **fields: Any) -> int:
        """Register a schema that has to be taken; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        path = f"/subjects/{quote(subject, safe='')}/versions"
        status, answer = self.call("POST", path, {"schema": text, **fields})
        assert status == 200, answer
        return int(answer["id"])

    def kill(self) -> None:
        """`kill -9`, and wait for the end."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """SIGTERM and wait for the end; the exit status."""
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
