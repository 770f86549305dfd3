"""The `lakehead` process: the command line, and an end that no other thread can spoil."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from lakehead.broker.cli.app import main
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.process_end import end_now


def run() -> NoReturn:
    """Run the command line, and end the process with its status.

    The interpreter is not torn down. Threads of the object store's library hand responses to
    event loops. The interpreter would end a thread that does so at that moment, a thread of Rust
    then raises SIGABRT, and the command's status would be lost.
    """
    _open_standard_streams()
    # kio imports hypothesis where it is installed: a third of a start, and a folder .hypothesis.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    configure_logs("warning")  # on standard error: structlog's default is standard output
    status = _status()
    # The steps of the interpreter before it is torn down, in its order.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name
    atexit._run_exitfuncs()  # noqa: SLF001 - has no public name
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone, or it is closed
            stream.flush()
    end_now(status)


def _open_standard_streams() -> None:
    """Open those of the three standard streams that the parent has closed, as /dev/null.

    The next file or socket would get the number of a closed one, and what a library prints. libuv
    ends the process for it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number. Children have it as well, for the same reason.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


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
