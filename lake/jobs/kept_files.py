"""Keeps the files of declared tables beside who follows them, in a thread of its own: a table that
is optimized for minutes gets its records meanwhile.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from lakehead.lake.jobs.table_lease import TableLeases, TableTaken
from lakehead.lake.jobs.table_upkeep import TableTarget, UpkeepResult, keep_files, targets
from lakehead.lake.jobs.unexpected import as_error

LOOK_S = 300.0
"""How often tables are looked at: it costs a listing and a few requests for each."""

_END_S = 10.0

FilesTold = Callable[[UpkeepResult], None]


@contextmanager
def files_kept(
    leases: TableLeases,
    topics: Sequence[str],
    tell: FilesTold | None,
    *,
    every_s: float = LOOK_S,
) -> Iterator[None]:
    """Do what is due of the files of the declared tables (of `topics`, or of all) while the block
    runs, and tell of it; with None to tell, nothing. A table that another process writes is left to
    that one.

    A job that is under way at the end may be ended anywhere.
    """
    if tell is None:
        yield
        return
    stopped = threading.Event()

    def run() -> None:
        while True:
            for target in _looked(leases, topics):
                for result in keep_files(target, partial(_kept, leases, target.topic_id)):
                    if not isinstance(result.error, TableTaken):
                        tell(result)
                if stopped.is_set():
                    return
            if stopped.wait(every_s):
                return

    thread = threading.Thread(target=run, name="table-files", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_END_S)


@contextmanager
def _kept(leases: TableLeases, topic_id: str) -> Iterator[None]:
    leases.keep(topic_id)  # not given back: who follows the table needs it as well
    yield


def _looked(leases: TableLeases, topics: Sequence[str]) -> Sequence[TableTarget]:
    try:
        return targets(leases.catalog(), topics)
    except BaseException as caught:  # noqa: BLE001 - the next look may find more
        as_error(caught, "upkeep of tables")  # the job that follows them tells what is wrong
        return ()
