"""The commands of jobs: each is made from the declaration of its job
(`lakehead.storage.jobs.job`).
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, ConfigOption, PathOption, place_uri, store_uri
from lakehead.broker.cli.confirmation import YesOption, confirm
from lakehead.broker.cli.listing import JsonOption, json_names, show_fields, show_rows
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.jobs.job import (
    DamageFound,
    Job,
    JobContext,
    Progress,
    Report,
    Runner,
    never_confirmed,
    no_progress,
    run_inline,
    to_both,
)
from lakehead.storage.jobs.options import BrokerDefaults, Option, options_of, parsed
from lakehead.storage.jobs.run_recorder import RunRecorder

_ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, metavar="N", help="Number of processes.")
]
_WORKERS = 2
_WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers", min=1, metavar="N", help="Number of threads that make a table's files."
    ),
]
_WAIT_S = 60.0
"""Longer than a lease lives on after its holder was killed elsewhere."""
_WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Seconds to wait for the lease of a table that another process writes. One that "
        "keeps tables hands it over for the time of this command.",
    ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCall:
    """A call of a job's command: the job, its options, and the values of the flags that commands of
    jobs share. `path` is the cluster's as it was given, `store` the URI of its object store.
    """

    job: Job[Any, Any]
    options: Any
    path: str
    store: str
    dry_run: bool
    yes: bool
    as_json: bool
    processes: int
    workers: int
    wait: float

    @classmethod
    def of(cls, job: Job[Any, Any], given: Mapping[str, Any]) -> Self:
        """Return the call with these parameters. Raises SettingsError."""
        if job.machinery:
            import_module(job.machinery)
        declared = options_of(job.options)
        options = {one.name: given[one.name] for one in declared if one.name in given}
        if "config" in given:
            of_brokers = _defaults(given["config"])
            options |= {
                one.name: of_brokers for one in declared if one.plain_type is BrokerDefaults
            }
        path = given["path"]
        return cls(
            job=job,
            options=parsed(job.name, job.options, options),
            path=path,
            store=_broken_store(path) if job.is_for_broken_clusters else store_uri(path),
            dry_run=given["dry_run"],
            yes=given.get("yes", False),
            as_json=given["as_json"],
            processes=given.get("processes", 1),
            workers=given.get("workers", _WORKERS),
            wait=given.get("wait", _WAIT_S),
        )

    def context(
        self, on_progress: Progress = no_progress, spark: Runner | None = None
    ) -> JobContext:
        """Return the environment of a run, with a runner of Spark's or that of `--processes`."""
        return JobContext(
            path=self.store,
            runner=spark or _runner(self.processes),
            on_progress=on_progress,
            wait_s=self.wait,
            on_wait=lambda reason: typer.echo(f"lakehead: {reason}", err=True),
            if_taken="retry",  # a command fails by a table that another process writes
            workers=self.workers,
            is_local=spark is None,
            is_dry_run=self.dry_run,
        )

    def run(self, spark: Runner | None = None) -> None:
        """Run the job or show its plan, and print the result. Raises what the job raises, and
        SettingsError where it is not confirmed.
        """
        job = self.job
        if not self.dry_run and (question := job.confirmation(self.options)):
            confirm(question, yes=self.yes)
        if self.dry_run:
            self._show_plan(spark)
            return
        has_damage = False
        with recorded_run(_shown_name(job), self.store) as recorder:
            result = self._performed(recorder, spark)
            result.check()
            try:
                job.finish(result.as_fields())
            except DamageFound as damage:
                has_damage = True
                recorder.failed(str(damage))
        if has_damage:
            raise typer.Exit(1)  # the report has shown it

    def _performed(self, recorder: RunRecorder, spark: Runner | None) -> Any:
        job = self.job
        with ByteProgress(_shown_name(job), shown=not self.as_json) as progress:
            context = self.context(to_both(progress.update, recorder.progress), spark)
            context = replace(context, runner=recorder.counting(context.runner))
            result = job.perform(context, self.options, job.plan(context, self.options))
        report = job.show(result)
        recorder.found(report.fields or {})
        show_report(report, self.as_json)
        return result

    def _show_plan(self, spark: Runner | None) -> None:
        job, found = self.job, None
        with ByteProgress(_shown_name(job), shown=not self.as_json) as progress:
            context = self.context(progress.update, spark)
            planned = job.plan(context, self.options)
            if job.preview is not None:
                found = job.preview(context, self.options, planned)
                planned = replace(planned, found=found)
        show_report(job.report_of_plan(planned), self.as_json)
        if planned.found is not None:
            planned.found.check()


def _broken_store(path: str) -> str:
    """Return the store of a cluster that may have no metadata to find it by: the folder `store` of
    a data folder, else the place itself.
    """
    plain = plain_address(path)
    place = place_uri(plain)
    inner = f"{place}/store"
    is_folder = place.startswith("file:") and Path(inner.removeprefix("file:")).is_dir()
    return (inner if is_folder else place) + path.removeprefix(plain)


def _shown_name(job: Job[Any, Any]) -> str:
    return job.name.replace("_", "-")


def job_command(
    job: Job[Any, Any], *, extended_by: Callable[..., None] = lambda call: call.run()
) -> Callable[..., None]:
    """Return the command of a job, as Typer takes it.

    A command that does more than its job is `extended_by` a function: it gets the JobCall, which
    runs the job, and by name the values of flags that it declares itself.
    """
    more = list(inspect.signature(extended_by).parameters.values())[1:]

    def command(**given: Any) -> None:
        extended_by(JobCall.of(job, given), **{one.name: given[one.name] for one in more})

    parameters = list(_parameters(job, more))
    command.__doc__ = inspect.cleandoc(job.help)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    # Typer reads the signature, as `inspect` gives it.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(
    job: Job[Any, Any], more: Sequence[inspect.Parameter]
) -> Iterator[inspect.Parameter]:
    options = options_of(job.options)
    yield from (_argument(one) for one in options if one.info.is_argument)
    if job.is_for_broken_clusters:
        yield _parameter("path", _StoreOption, f"{DEFAULT_PATH}/store")
    else:
        yield _parameter("path", PathOption, DEFAULT_PATH)
    if any(one.plain_type is BrokerDefaults for one in options):
        yield _parameter("config", ConfigOption, None)
    yield from (_parameter(one.name, one.annotation, one.default) for one in more)
    yield from (_flag(one) for one in options if one.info.flag)
    if job.takes_lease:
        yield _parameter("wait", _WaitOption, _WAIT_S)
    if job.takes_workers:
        yield _parameter("workers", _WorkersOption, _WORKERS)
    if job.takes_processes:
        yield _parameter("processes", _ProcessesOption, 1)
    dry_run = Annotated[bool, typer.Option("--dry-run", help=job.dry_run_help)]
    yield _parameter("dry_run", dry_run, False)
    if job.confirmation is not never_confirmed:
        yield _parameter("yes", YesOption, False)
    yield _parameter("as_json", JsonOption, False)


def _argument(one: Option) -> inspect.Parameter:
    shown = typer.Argument(metavar=one.info.metavar, help=one.info.help)
    if one.plain_type == tuple[str, ...]:
        return _parameter(one.name, Annotated[list[str] | None, shown], None)
    return _parameter(one.name, Annotated[one.type, shown], inspect.Parameter.empty)


def _flag(one: Option) -> inspect.Parameter:
    info = one.info
    names = [info.flag, info.short_flag] if info.short_flag else [info.flag]
    is_flag, is_list = one.plain_type is bool, one.plain_type == tuple[str, ...]
    shown = typer.Option(
        *names,
        help=info.help,
        metavar=None if is_flag else info.metavar or "|".join(one.choices) or None,
        min=info.least,
        max=info.most,
    )
    kind: Any = list[str] | None if is_list else one.type
    return _parameter(one.name, Annotated[kind, shown], None if is_list else one.default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _defaults(config: str | None) -> BrokerDefaults:
    # Modules of the broker, which most jobs do not need.
    from lakehead.broker.cli.maintain import settings_of
    from lakehead.broker.configs.entries import maintenance_defaults

    return BrokerDefaults(given=maintenance_defaults(settings_of(config)).given)


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
            for line in () if as_json else table.lines:
                typer.echo(line)
        return
    if as_json:
        named = {one.name: list(map(json_names, one.rows)) for one in report.tables if one.name}
        typer.echo(json.dumps(json_names({**report.fields, **named})))
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
