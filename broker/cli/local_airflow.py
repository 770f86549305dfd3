"""`lakehead airflow`: an Airflow of this machine that keeps a cluster, to look at and to try."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import holds_cluster, run, store_uri
from lakehead.broker.cli.demonstration.airflow_home import USER, AirflowHome, free_port
from lakehead.broker.cli.demonstration.airflow_process import running_airflow
from lakehead.broker.cli.demonstration.broker_process import running_broker
from lakehead.broker.cli.demonstration.stage import Stage
from lakehead.broker.cli.demonstration.trickle import make_topics, trickling
from lakehead.broker.cli.extras import require_extras
from lakehead.broker.supervisor.lifeline import is_supervised, stop_with_supervisor
from lakehead.storage.errors import LakeheadError, RequestRefused, SettingsError

_PORT = 8080
_UPLOAD_AGE_MS = 2_000
_DAGS = Path(__file__).resolve().parents[2] / "dags"
# More often than the DAGs' own schedules: a demonstration shows their runs within minutes.
_DEMO_SCHEDULES = {
    "lakehead_materialize": "* * * * *",
    "lakehead_compact_objects": "*/2 * * * *",
    "lakehead_compact_topics": "*/5 * * * *",
    "lakehead_apply_retention": "*/5 * * * *",
    "lakehead_table_upkeep": "*/10 * * * *",
    "lakehead_sweep": "*/15 * * * *",
}
_DEMO_PARAMS = {"lakehead_sweep": {"grace_s": 120}}


def local_airflow(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder of Airflow and the demo cluster; used again if it is there. [default: "
            "./lakehead-airflow, or the next number that no other one runs in]",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        str,
        typer.Option(
            "--path",
            metavar="PATH",
            help="Keep this cluster: its data folder, or its object store. [default: a demo "
            "cluster of its own, into which records trickle]",
            show_default=False,
        ),
    ] = "",
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", help="Of the web page; another one if it is taken."),
    ] = _PORT,
    dags: Annotated[
        Path | None,
        typer.Option(
            "--dags",
            metavar="FOLDER",
            help="DAG files. [default: dags/ of the checkout]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run Airflow with Lakehead's DAGs on this machine.

    Beside a demo cluster, or for a given one.

    Airflow has a folder, SQLite and a password of its own, and listens on the loopback address. It
    ends, and all that belongs to it, with Ctrl-C or SIGTERM; started again it goes on where it was.
    With --path, jobs have the LAKEHEAD_ variables of this command: keys of encryption, for one.
    For a look and for tests, not for production: there, give the DAGs to your own Airflow.
    """
    dags = (dags or _DAGS).resolve()
    _require(dags)
    if path and not run(holds_cluster(store_uri(path))):
        raise SettingsError(f"there is no cluster in {path}: lakehead start makes one")
    if is_supervised(os.environ):
        stop_with_supervisor(os.environ)
    with _stopped_by_signals() as stopped, ExitStack() as stack:
        place = stack.enter_context(own_folder(folder))
        stage = Stage()
        stage.title(f"of {path or 'a demo cluster'}, in {place}", of="Lakehead and Airflow")
        try:
            _serve(stage, place, path, port, dags, stopped)
        except _Stopped:
            pass


class _Stopped(Exception):
    """A signal said that it is enough."""


def _serve(
    stage: Stage, place: Path, path: str, port: int, dags: Path, stopped: threading.Event
) -> None:
    def check() -> None:
        if stopped.is_set():
            raise _Stopped

    home = AirflowHome(folder=_made(place / "airflow"), dags=dags, port=free_port(port))
    with ExitStack() as stack:
        variables: dict[str, object] = {}
        connection: dict[str, object] = {"conn_type": "lakehead", "extra": {}}
        if path:
            connection["extra"] = {"path": store_uri(path)}
        else:
            address, store = _demo_cluster(stage, stack, _made(place / "cluster"))
            name, _, number = address.rpartition(":")
            connection |= {"host": name, "port": int(number), "extra": {"path": store}}
            variables["lakehead_dags"] = {"schedules": _DEMO_SCHEDULES, "params": _DEMO_PARAMS}
        stage.step("Start Airflow")
        word = home.password()
        environment = home.environment(
            os.environ, connection=connection, variables=variables, keeps_settings=bool(path)
        )
        with stage.waiting("The first time takes a minute: it makes its database"):
            process = stack.enter_context(running_airflow(home, environment, check=check))
        stage.say(f"[bold]{home.url}[/]  user [bold]{USER}[/]  password [bold]{word}[/]")
        stage.say(f"Its parts log to {home.log}. Ctrl-C ends it.")
        while not stopped.wait(0.5):
            if process.poll() is not None:
                raise LakeheadError(f"Airflow ended by itself: see {home.log}")
        stage.say("Ending Airflow ...")


def _demo_cluster(stage: Stage, stack: ExitStack, folder: Path) -> tuple[str, str]:
    """Start the demo's cluster and its traffic; return its address and its store's URI."""
    stage.step("Start a broker, and a producer")
    store = f"file:{folder}/store"
    # Airflow does the maintenance.
    settings = {
        "--upload.age.ms": str(_UPLOAD_AGE_MS),
        "--store": store,
        "--maintain": "false",
        "--wal.size": "64MiB",
    }
    address = stack.enter_context(running_broker(folder, *chain(*settings.items())))
    make_topics(address)
    stack.enter_context(trickling(address))
    stage.say(f"A Kafka broker at {address}; topic weather declares a table")
    return address, store


def _require(dags: Path) -> None:
    require_extras("airflow", "lake")
    if not any(dags.glob("lakehead_*.py")):
        raise SettingsError(f"no DAG files in {dags}: name dags/ of a checkout by --dags")


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def own_folder(wanted: Path | None) -> Iterator[Path]:
    """Yield a folder that no other run has, for as long as the block lasts."""
    names = (
        ("lakehead-airflow" if n == 1 else f"lakehead-airflow-{n}" for n in count(1))
        if wanted is None
        else (wanted,)
    )
    for name in names:
        place = Path(name).absolute()
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield place
            return
    raise RequestRefused(f"another one runs in {wanted}: name another folder, or end that one")


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that is set by the signals that end a program."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before: dict[signal.Signals, Any] = {one: signal.signal(one, stop) for one in signals}
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
