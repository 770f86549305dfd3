"""A headless Chromium, told what to do over the DevTools protocol by a pair of pipes."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_POLL_S = 0.25
_PIPED = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for number, one in enumerate(pipes, 3):
    os.dup2(one, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes Chromium, which has the protocol's pipes as descriptors 3 and 4."""


def chromium() -> str | None:
    """Where Chromium is installed, if it is."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Page:
    """A page that is open; errors of the protocol are RuntimeError."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = os.fdopen(reads, "rb")
        self._writes = os.fdopen(writes, "wb", buffering=0)
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method, and return what it returns."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writes.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Evaluate JavaScript."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, script: str, deadline_s: float) -> None:
        """Wait until JavaScript says true."""
        deadline = time.monotonic() + deadline_s
        while self.run(script) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{script}; the page says: {self.text()[:2000]}")
            time.sleep(_POLL_S)

    def text(self) -> str:
        """What a reader of the page sees."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def screenshot(self, path: Path) -> None:
        """Write what is in the window as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._writes.close()
        self._reads.close()

    def _message(self) -> bytes:
        parts = []
        while (byte := self._reads.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has ended")
            parts.append(byte)
        return b"".join(parts)


@contextlib.contextmanager
def opened_page(folder: Path, *, width: int = 1280, height: int = 800) -> Iterator[Page]:
    """Start Chromium with its profile in `folder`; yield a page; end it."""
    program = chromium()
    assert program is not None
    (told, tells), (heard, hears) = os.pipe(), os.pipe()
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"),
        *(f"--window-size={width},{height}", "--hide-scrollbars", "about:blank"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _PIPED, str(told), str(hears), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(told, hears),
    )
    os.close(told)
    os.close(hears)
    page = Page(heard, tells)
    try:
        yield page
    finally:
        with contextlib.suppress(RuntimeError, OSError):
            page.call("Browser.close")
        page.close()
        process.kill()
        process.wait()
