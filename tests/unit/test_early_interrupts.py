"""An interrupt while a command still loads its modules ends it without a word."""

import signal
import subprocess
import sys

INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "lakehead.broker.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
import lakehead.broker.cli
"""
LOADED = """
import signal
import lakehead.broker.cli
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_an_interrupt_during_imports_ends_the_process_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_a_loaded_command_takes_interrupts_as_before() -> None:
    subprocess.run([sys.executable, "-c", LOADED], timeout=60, check=True)
