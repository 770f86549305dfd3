"""An exception that no code of ours expects is the error of the table it is about, and of no other.

It is logged with its traceback, for who mends the defect, and told as the table's error like any
other: the table is tried again after a pause. That the process is to end is no such error.
"""

import asyncio
import logging

from lakehead.storage.errors import LakeheadError

_log = logging.getLogger(__name__)
_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


class UnexpectedError(LakeheadError):
    """A defect of Lakehead, or of a library, that a table ran into. The log has the traceback."""


def as_error(caught: BaseException, where: str) -> LakeheadError:
    """Return an exception as the error of what is at `where`. Raises it again if it is to end the
    process.

    Libraries in Rust raise their panics below `BaseException`, so that is what to catch.
    """
    if isinstance(caught, LakeheadError):
        return caught
    if isinstance(caught, _ENDS):
        raise caught
    _log.error("%s: unexpected %s", where, type(caught).__name__, exc_info=caught)
    text = " ".join(str(caught).split())
    return UnexpectedError(
        f"{where}: unexpected {type(caught).__name__}{': ' if text else ''}{text} (the log of the "
        "job has the traceback; please report it)"
    )
