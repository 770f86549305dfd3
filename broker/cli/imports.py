"""The imports of a process: a start of a node is mostly imports, so they load what it needs alone.

The rule: a package that a node does not need before its first response is imported in the
functions that use it. `tests/integration/test_node_start.py` has the list of what a node that is
ready has loaded.
"""

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Imports within the block take `package`, which they try to have, for one that is missing."""
    known = package in sys.modules
    if not known:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not known:
            del sys.modules[package]


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports within the block make no garbage: the collector would go over all modules again and
    again. It leaves their objects alone afterwards, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """An interrupt (Ctrl-C) within the block ends the process at once, without a traceback of the
    imports. A program that treats interrupts in its own way, and any thread but the main one, keep
    what they have.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
