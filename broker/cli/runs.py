"""`lakehead runs`: the runs of jobs, with their progress and their end."""

from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, open_cluster, run
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_record import RUNS_MAX, Run, RunRecords
from lakehead.storage.plain_text import moment, size_text

_COLUMNS = {
    "job": "JOB",
    "state": "STATE",
    "started": "STARTED",
    "seconds": "SECONDS",
    "done": "DONE",
    "rate": "RATE",
    "holder": "HOLDER",
    "end": "END",
}


def list_runs(
    path: PathOption = DEFAULT_PATH,
    count: Annotated[
        int,
        typer.Option("--count", min=1, max=RUNS_MAX, metavar="N", help="The last N runs."),
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the last runs of jobs: progress, holder, end.

    STATE is running, succeeded, failed or abandoned (no record for a minute: the process was
    killed). DONE is the part of the bytes or, where these are not known, of the units of work. Runs
    of Airflow's tasks are among them. A command that follows is one run until it is stopped: those
    that left a record last come first.
    """
    runs = run(_newest(path, count))
    show_rows([_fields(one) if as_json else _row(one) for one in runs], _COLUMNS, as_json)


async def _newest(path: str, count: int) -> list[Run]:
    store = open_cluster(path)
    try:
        return await RunRecords(store).newest(count, SystemClock().now_ms())
    finally:
        await store.close()


def _fields(one: Run) -> dict[str, Any]:
    rate = one.bytes_per_s
    return {
        "job": one.job,
        "state": one.state.value,
        "holder": one.holder,
        "started": moment(one.started_ms),
        "updated": moment(one.updated_ms),
        "seconds": one.seconds,
        "doing": one.doing or None,
        "done_bytes": one.done_bytes,
        "total_bytes": one.total_bytes,
        "done_units": one.done_units,
        "total_units": one.total_units,
        "bytes_per_second": None if rate is None else round(rate),
        "reason": one.reason or None,
        "result": dict(one.result),
    }


def _row(one: Run) -> dict[str, Any]:
    share, rate = one.share, one.bytes_per_s
    return {
        "job": one.job,
        "state": one.state.value,
        "started": moment(one.started_ms)[:19],
        "seconds": round(one.seconds),
        "done": None if share is None else f"{share:.0%}",
        "rate": None if rate is None else f"{size_text(rate)}/s",
        "holder": one.holder,
        "end": one.reason or one.doing or figures(one) or None,
    }


def figures(one: Run) -> str:
    """Return the result of a run in a line."""
    return ", ".join(f"{name} {value}" for name, value in one.result.items() if value)
