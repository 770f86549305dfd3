"""Runners of work items: in this task's process, in processes of this machine, or on Spark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from airflow.providers.common.compat.sdk import AirflowFailException

from lakehead.connectors.airflow.spark_secrets import executor_properties, submit_arguments

if TYPE_CHECKING:
    from lakehead.storage.jobs.job import Runner

Item = TypeVar("Item")
Result = TypeVar("Result")
RunnerName = Literal["local", "spark", "connect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """`local`: this process, or so many `processes` beside it. `spark`: a session at `master` that
    lives as long as the task, with `config`. `connect`: the Spark Connect server at `remote`.
    """

    name: RunnerName = "local"
    processes: int = 1
    master: str = "local[2]"
    remote: str = ""
    config: Mapping[str, str] = field(default_factory=dict)


def checked_runner(value: str) -> RunnerName:
    """Return `runner` if it is valid. Raises ValueError, which Airflow shows as an import error."""
    for known in get_args(RunnerName):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"runner is {value!r}: use {', '.join(get_args(RunnerName))}")


@contextmanager
def opened_runner(settings: RunnerSettings, storage: Mapping[str, str]) -> Iterator["Runner"]:
    """Yield a runner, and end what was started for it. Spark starts with the first items: a plan
    without any, or a task whose items are done, needs none. `storage` are the variables by which
    executors reach the store.

    Raises AirflowFailException; the runner SettingsError (no Java, no Spark), SparkFailed.
    """
    if settings.name == "local":
        from lakehead.lake.jobs.local_pool import run_items

        yield partial(run_items, processes=settings.processes)
        return
    from lakehead.lake.jobs.spark_runner import SparkFailed, spark_errors, spark_runner

    start: Callable[[], Any] = partial(_started, settings, storage)
    if settings.name == "connect":
        start = _connection(settings)
    sessions: list[Any] = []
    starting = Lock()

    def run(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        with starting, spark_errors():
            if not sessions:
                sessions.append(start())
        return spark_runner(sessions[0])(work, items)

    try:
        yield run
    finally:
        for session in sessions:
            with suppress(SparkFailed), spark_errors():  # it may have ended before
                session.stop()


def _started(settings: RunnerSettings, storage: Mapping[str, str]) -> Any:
    from lakehead.lake.spark import spark_session

    with executor_properties(storage) as properties, submit_arguments(properties):
        return spark_session(
            app_name="lakehead", master=settings.master, delta=False, config=settings.config
        )


def _connection(settings: RunnerSettings) -> Callable[[], Any]:
    """Return what connects to the server."""
    if not settings.remote:
        raise AirflowFailException(
            "runner=connect needs spark_remote: the server's address, sc://host:15002"
        )
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise AirflowFailException(
            f"Spark Connect is not installed on this worker ({error}): pip install "
            "'lakehead[connect]'"
        ) from None
    return SparkSession.builder.remote(settings.remote).getOrCreate
