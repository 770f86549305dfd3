"""Errors of reading a lake, beside those of `lakehead.storage.errors`.

`as_error` makes an exception that no code of ours expects the error of the table that it is about,
and of no other: it is logged with its traceback and reported like the table's other errors, and the
table is tried again after a pause. An exception that ends the process is raised again.
"""

import asyncio
import logging

from lakehead.storage.errors import LakeheadError


class DataLoss(LakeheadError):
    """Requested records do not exist any more, or never did."""


class UndecodableValue(LakeheadError):
    """A value is not what its topic's declaration says. Names topic, partition and offset."""


class InvalidRecord(LakeheadError):
    """A batch, or the time of a record, that no reader can read although its bytes are as they were
    produced (Kafka's INVALID_RECORD). Names topic, partition and offsets.
    """


class ScanClosed(LakeheadError):
    """A scan was closed before it had given all its records."""


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
