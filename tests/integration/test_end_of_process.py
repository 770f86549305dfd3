"""How the `lakehead` process ends while threads of libraries are at work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANSWERS = """
import asyncio, atexit, sys, threading
import lakehead.broker.cli.process as process
from obstore.store import LocalStore

def main():
    store, loop = LocalStore({folder!r}), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    async def ask():
        while True:
            await asyncio.gather(*(store.get_async("object") for _ in range(50)))
    asked = asyncio.run_coroutine_threadsafe(ask(), loop)
    try:
        asked.result(0.3)  # answers go on to come while the process ends
    except TimeoutError:
        pass
    {end}

process.main = main
atexit.register(print, "at exit")
process.run()
"""


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no')", 1, "no"),
        ("raise LookupError('gone')", 1, "LookupError: gone"),
        ("pass", 0, ""),
    ],
)
def test_the_status_is_the_commands_whatever_answers_come_at_its_end(
    tmp_path: Path, end: str, status: int, told: str
) -> None:
    """Torn down, the interpreter ends a thread that brings an answer; Rust then aborts."""
    (tmp_path / "object").write_bytes(bytes(1 << 16))
    program = ANSWERS.format(folder=str(tmp_path), end=end)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "at exit\n")
    assert done.stderr.strip().endswith(told)
    assert bool(done.stderr) is bool(told)
