"""The commands of jobs: each is made from the declaration of its job
(`lakehead.storage.jobs.job`).
"""

import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.cli.maintain import ConfigOption, settings_of
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.configs.entries import upkeep_defaults
from lakehead.storage.jobs.job import DamageFound, Job, JobContext, Report, Runner, run_inline
from lakehead.storage.jobs.options import BrokerDefaults, Option, options_of, parsed

_ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, metavar="N", help="Number of processes.")
]
_StoreOption = Annotated[
    str,
    typer.Option(
        "--path",
        "-p",
        metavar="PATH",
        envvar="LAKEHEAD_PATH",
        help="The cluster's store: its folder, or its URI (s3://bucket/prefix).",
    ),
]


def job_command(module: str) -> Callable[..., None]:
    """Return the command of the job that a module declares, as Typer takes it."""
    job: Job[Any, Any] = import_module(module).JOB

    def command(**given: Any) -> None:
        _run(job, given)

    parameters = list(_parameters(job))
    command.__doc__ = inspect.cleandoc(job.help)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    # Typer reads the signature, as `inspect` gives it.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(job: Job[Any, Any]) -> Iterator[inspect.Parameter]:
    options = options_of(job.options)
    for one in options:
        if one.info.is_argument:
            yield _parameter(
                one.name,
                Annotated[
                    list[str] | None, typer.Argument(metavar=one.info.metavar, help=one.info.help)
                ],
                None,
            )
    if job.is_for_broken_clusters:
        yield _parameter("path", _StoreOption, f"{DEFAULT_PATH}/store")
    else:
        yield _parameter("path", PathOption, DEFAULT_PATH)
    if any(one.plain_type is BrokerDefaults for one in options):
        yield _parameter("config", ConfigOption, None)
    for one in options:
        if one.info.flag:
            yield _flag(one)
    if job.takes_processes:
        yield _parameter("processes", _ProcessesOption, 1)
    dry_run = Annotated[bool, typer.Option("--dry-run", help=job.dry_run_help)]
    yield _parameter("dry_run", dry_run, False)
    yield _parameter("as_json", JsonOption, False)


def _flag(one: Option) -> inspect.Parameter:
    info = one.info
    names = [info.flag, info.short_flag] if info.short_flag else [info.flag]
    is_flag, is_list = one.plain_type is bool, one.plain_type == tuple[str, ...]
    shown = typer.Option(
        *names,
        help=info.help,
        metavar=None if is_flag else info.metavar or None,
        min=info.least,
        max=info.most,
    )
    kind: Any = list[str] | None if is_list else one.type
    return _parameter(one.name, Annotated[kind, shown], None if is_list else one.default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _run(job: Job[Any, Any], given: dict[str, Any]) -> None:
    path, as_json, dry_run = given.pop("path"), given.pop("as_json"), given.pop("dry_run")
    processes = given.pop("processes", 1)
    if "config" in given:
        values = upkeep_defaults(settings_of(given.pop("config"))).given
        for one in options_of(job.options):
            if one.plain_type is BrokerDefaults:
                given[one.name] = BrokerDefaults(given=values)
    options = parsed(job.name, job.options, given)
    with ByteProgress(job.name.replace("_", "-"), shown=not as_json) as progress:
        context = JobContext(
            path=path if job.is_for_broken_clusters else store_uri(path),
            runner=_runner(processes),
            on_progress=progress.update,
            is_dry_run=dry_run,
        )
        planned = job.plan(context, options)
        result = None if dry_run else job.perform(context, options, planned)
    if result is None:
        show_report(job.report_of_plan(planned), as_json)
        return
    show_report(job.show(result), as_json)
    result.check()
    try:
        job.finish(result.as_fields())
    except DamageFound:
        raise typer.Exit(1) from None  # the report has shown it


def _runner(processes: int) -> Runner:
    if processes == 1:
        return run_inline
    from lakehead.lake.jobs.local_pool import run_items

    return partial(run_items, processes=processes)


def show_report(report: Report, as_json: bool) -> None:
    """Print a report: tables and then fields for people, or JSON."""
    if report.fields is None:
        for table in report.tables:
            show_rows(table.rows, table.columns, as_json)
        return
    if as_json:
        named = {table.name: table.rows for table in report.tables if table.name}
        typer.echo(json.dumps({**report.fields, **named}))
        return
    for table in report.tables:
        if table.rows or table.lines or not table.name:
            show_rows(table.rows, table.columns, as_json=False)
            for line in table.lines:
                typer.echo(line)
            typer.echo("")
    show_fields(report.fields, as_json=False)
    if report.note:
        typer.echo(f"\n{report.note}")
