"""The `lakehead` process: the command line, and an end that no other thread can spoil."""

import atexit
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from lakehead.broker.cli.app import main
from lakehead.broker.process_end import end_now


def run() -> NoReturn:
    """Run the command line, and end the process with its status.

    The interpreter is not torn down. Threads of the object store's library tell event loops of
    their answers, and one that does so at that moment is ended by the interpreter, which a thread
    of Rust's answers with SIGABRT: the command's status would be lost.
    """
    status = _status()
    # What the interpreter does before it is torn down, in its order.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name
    atexit._run_exitfuncs()  # noqa: SLF001 - has no public name
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone, or it is closed
            stream.flush()
    end_now(status)


def _status() -> int:
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does at its own end
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
