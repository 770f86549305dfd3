"""A process that has been ended and that the kernel still has is told from one that lives."""

import subprocess
import sys
from pathlib import Path

from lakehead.storage.wal.holder import Holder, is_ending
from lakehead.storage.wal.volume import in_use
from tests.support.waiting import wait_until

NAMED = """
import ctypes, sys, threading
from lakehead.storage.wal.holder import HostProcesses

threading.Thread(target=sys.stdin.read).start()
print(HostProcesses().current().name, flush=True)
threading.Event().wait(float(sys.argv[1]))
ctypes.CDLL(None).syscall(60, 0)  # exit(2): this thread alone, the first one, and not the process
"""
ROOT = Path(__file__).parents[2]


def test_a_process_whose_other_threads_do_not_end_is_ending_and_not_in_use_by_mistake() -> None:
    command = [sys.executable, "-c", NAMED, "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        holder = Holder.named(process.stdout.readline().strip())
        assert wait_until(lambda: is_ending(holder), 30)
        assert process.poll() is None, "it has no status yet"
        assert "has been ended and waits for a device" in str(in_use("disk", holder))
        process.kill()
    assert not is_ending(holder), "it is gone"


def test_a_process_that_lives_is_not_ending() -> None:
    command = [sys.executable, "-c", NAMED, "1000"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        holder = Holder.named(process.stdout.readline().strip())
        assert not is_ending(holder)
        assert "in use by process" in str(in_use("disk", holder))
        process.kill()
