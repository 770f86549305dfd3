"""Base of the operators that run a job: its context, progress, errors and cancelling.

Airflow ends a task by SIGTERM, upon which it calls `on_kill` in the middle of the main thread's
work, and kills the process five seconds later. So `on_kill` raises `Cancelled` there, once, and
only while the work runs; the code that returns leases and ends children runs after that,
undisturbed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context

from lakehead.connectors.airflow.errors import airflow_errors, checked_if_taken
from lakehead.connectors.airflow.hooks import LakeheadHook
from lakehead.connectors.airflow.jobs import checked_job, job_named
from lakehead.connectors.airflow.lineage import has_openlineage
from lakehead.connectors.airflow.progress import ProgressLines
from lakehead.connectors.airflow.runners import RunnerSettings, checked_runner, opened_runner
from lakehead.connectors.airflow.table_changes import TABLES, add_events, lineage_of, task_key

if TYPE_CHECKING:
    from lakehead.storage.jobs.job import Fields, Job, JobContext, TableChange


class Cancelled(KeyboardInterrupt):
    """The task was cancelled. Not an error: no handler of errors may catch it. An event loop lets a
    KeyboardInterrupt out of a callback, and only logs other exceptions.
    """


class Cancellation:
    """Of one task. For its main thread, signal handlers included."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._is_working = False

    def cancel(self) -> None:
        """Have the work end. Raises Cancelled if it is running now."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        self._raise_if_working()

    @contextmanager
    def breaks_in(self) -> Iterator[None]:
        """While the block runs, `cancel` ends it by Cancelled; so does an earlier call."""
        self._is_working = True
        try:
            if self._is_cancelled:
                self._raise_if_working()
            yield
        finally:
            self._is_working = False

    def _raise_if_working(self) -> None:
        if self._is_working:
            self._is_working = False
            raise Cancelled


def with_table_events(job: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of an operator with the outlet that a job needs which writes tables."""
    outlets = list(kwargs.get("outlets") or ())
    if job_named(checked_job(job)).writes_tables and TABLES not in outlets:
        outlets.append(TABLES)
    return {**kwargs, "outlets": outlets}


class LakeheadOperator(BaseOperator):
    """Base of the operators that work on a cluster.

    :param lakehead_conn_id: the connection of the cluster.
    :param runner: runner of work items: ``local``, ``spark`` or ``connect``. (templated)
    :param processes: with ``local``, number of processes; 1: the task's own.
    :param workers: threads that make a table's files at once.
    :param spark_master: with ``spark``, the master of the task's own session. (templated)
    :param spark_remote: with ``connect``, the server's address. (templated)
    :param spark_config: with ``spark``, settings of the session. (templated)
    :param wait_s: seconds to wait for another writer's table lease.
    :param if_taken: after that: ``skip`` the table, or ``retry`` the task.
    :param dry_run: report the work that is due, and do nothing. (templated)
    """

    template_fields: Sequence[str] = (
        *("lakehead_conn_id", "runner", "spark_master", "spark_remote", "spark_config"),
        "is_dry_run",
    )
    ui_color = "#d7ecf5"

    def __init__(
        self,
        *,
        lakehead_conn_id: str = LakeheadHook.default_conn_name,
        runner: str = "local",
        processes: int = 1,
        workers: int = 2,
        spark_master: str = "local[2]",
        spark_remote: str = "",
        spark_config: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        if_taken: str = "skip",
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lakehead_conn_id = lakehead_conn_id
        self.runner = runner if "{{" in runner else checked_runner(runner)
        self.processes = processes
        self.workers = workers
        self.spark_master = spark_master
        self.spark_remote = spark_remote
        self.spark_config = dict(spark_config or {})
        self.wait_s = wait_s
        self.if_taken = checked_if_taken(if_taken)
        # BaseOperator has a method dry_run.
        self.is_dry_run = dry_run
        self._cancellation = Cancellation()
        self._changes: list[TableChange] = []

    @property
    def hook(self) -> LakeheadHook:
        """The cluster's hook."""
        return LakeheadHook(self.lakehead_conn_id)

    def on_kill(self) -> None:
        """Stop the work, give leases back."""
        self._cancellation.cancel()

    @property
    def is_plan_only(self) -> bool:
        """True if this is a dry run, as templates have rendered it."""
        return self.is_dry_run is True or str(self.is_dry_run).strip().lower() in {"true", "1"}

    @contextmanager
    def _work(
        self, what: str, context: Context, *, is_part: bool = False
    ) -> Iterator["JobContext"]:
        """Yield where a job runs, and turn what ends it into what Airflow knows. At the end events
        are made of what was done to tables.
        """
        from airflow.providers.common.compat.sdk import AirflowException

        from lakehead.connectors.airflow.runs import recorded_task
        from lakehead.storage.jobs.job import JobContext, to_both

        hook, written_by, is_dry_run = self.hook, task_key(context).text(), self.is_plan_only
        settings = RunnerSettings(
            name=checked_runner(self.runner),
            processes=self.processes,
            master=self.spark_master,
            remote=self.spark_remote,
            config=self.spark_config,
        )
        try:
            with (
                hook.environment(),
                airflow_errors(if_taken=self.if_taken),
                opened_runner(settings, hook.storage_settings) as runner,
                recorded_task(what, hook.path, written_by, is_dry_run=is_dry_run) as recorder,
            ):
                yield JobContext(
                    path=hook.path,
                    runner=recorder.counting(runner),
                    on_progress=to_both(ProgressLines(self.log, what), recorder.progress),
                    log=self.log,
                    wait_s=self.wait_s,
                    on_wait=partial(self.log.info, "%s"),
                    if_taken=self.if_taken,
                    workers=self.workers,
                    is_local=settings.name == "local",
                    is_dry_run=is_dry_run,
                    written_by=written_by,
                    is_retry=context["ti"].try_number > 1,
                    is_part=is_part,
                    reports_all=has_openlineage(),
                    on_change=self._changes.append,
                )
                is_retry = context["ti"].try_number > 1
                for change in self._changes:
                    if change.commits or is_retry:
                        add_events(context, self.lakehead_conn_id, change)
        except Cancelled:
            raise AirflowException(
                f"{what} was cancelled: completed work is kept, and a retry resumes"
            ) from None

    @staticmethod
    def _finish(job: "Job[Any, Any]", found: "Fields") -> None:
        with airflow_errors():
            job.finish(found)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of the tables that the task was at, by the notes that it made of
        them: the provider calls this in a fork, which must send no request to a store.
        """
        del task_instance
        hook = self.hook
        return lineage_of(self._changes, path=hook.path, bootstrap_servers=hook.bootstrap_servers)

    def _breaking_in(self, work: Callable[[], "Fields"]) -> "Fields":
        with self._cancellation.breaks_in():
            return work()

    def _log_fields(self, what: str, fields: Mapping[str, Any]) -> None:
        """Log the fields of a result: one line, and one for each entry of its lists."""
        plain = {name: value for name, value in fields.items() if not isinstance(value, list)}
        words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in plain.items())
        self.log.info("%s: %s", what, words or "nothing to do")
        for name, lines in fields.items():
            for line in lines if isinstance(lines, list) else ():
                log = self.log.info if name == "would_do" else self.log.warning
                log("%s: %s", name.replace("_", " "), line)
