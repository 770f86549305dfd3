"""The end of a command that goes on until Ctrl-C or SIGTERM.

As of a node: the first signal has it end in order, and a line on standard error says what it does
until then; a second one, a second or more later, ends it at once. In order is status 0.
"""

import asyncio
import os
import signal
import threading

from lakehead.broker.process_end import StopSignals
from lakehead.storage.clock import SystemClock

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Line:
    """A line that is shown once the event of a stop is set."""

    def __init__(self, words: str) -> None:
        self._line = f"lakehead: {words}; a second signal ends it at once\n" if words else ""

    def set(self) -> None:
        os.write(2, self._line.encode())  # also within a handler of Python's


def stopped_by_signal(words: str) -> asyncio.Event:
    """Return an event of the running loop that the first signal sets. `words` say what the command
    does then; without any, no line is shown, as of a process whose output is a node's log.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    end = StopSignals(loop.time, stopped, _Line(words))
    for number in _SIGNALS:
        loop.add_signal_handler(number, end.arrived, number)
    return stopped


def thread_stopped_by_signal(words: str) -> threading.Event:
    """Return an event for a command without a loop that the first signal sets; see
    `stopped_by_signal`.
    """
    stopped = threading.Event()
    end = StopSignals(SystemClock().monotonic, stopped, _Line(words))
    for number in _SIGNALS:
        signal.signal(number, lambda number, _frame: end.arrived(signal.Signals(number)))
    return stopped
