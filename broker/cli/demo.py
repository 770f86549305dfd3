"""`lakehead demo`: the whole way once, on real data, with the result checked at the end."""

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, TaskID

from lakehead.broker.cli.cluster import holds_cluster, load_state, run
from lakehead.broker.cli.demonstration.broker_process import running_broker
from lakehead.broker.cli.demonstration.dataset import DATASETS, messages, read_table
from lakehead.broker.cli.demonstration.loading import Loaded, load
from lakehead.broker.cli.demonstration.results import (
    QUERY,
    check_equal,
    make_views,
    query_delays,
    reference,
    table_in_spark,
)
from lakehead.broker.cli.demonstration.stage import Stage
from lakehead.broker.cli.extras import require_extras
from lakehead.lake.declaration.table_declaration import default_table_uri
from lakehead.storage.errors import LakeheadError, SettingsError

if TYPE_CHECKING:
    import pandas as pd

_UPLOAD_S = 60.0
_UPLOAD_AGE_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The places of a demo: its folder, and the URIs of store, WAL and Delta table."""

    folder: Path
    store: str
    wal: str
    table: str

    @property
    def is_local(self) -> bool:
        """Return true if the store is in the folder, so that the folder alone names it."""
        return self.store == f"file:{self.folder}/store"


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder for the data, new or empty. [default: ./lakehead-demo, or "
            "the next free number]",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URI",
            help="Object store for topics and table: s3://bucket/prefix, with no cluster in it "
            "yet. [default: the folder]",
            show_default=False,
        ),
    ] = "",
    wal: Annotated[
        str,
        typer.Option(
            "--wal",
            metavar="URI",
            help="Write-ahead log: block:/path or object: (the store). [default: in the folder]",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Stream real data through a broker into a Delta table.

    336,776 flights go through a broker and are queried by Spark SQL; the Delta table that is made
    of them is compared with both.

    Starts a broker of its own and stops it at the end. Leaves the data and says where.
    """
    require_extras()
    from lakehead.lake.spark import check_java

    check_java()
    place = _fresh_place(folder, store, wal)
    stage = Stage()
    stage.title(f"data in {_shown(place)}")
    _perform(stage, place)
    _finish(stage, place)


def _perform(stage: Stage, place: Place) -> None:
    from lakehead.lake.jobs.materialize import materialize
    from lakehead.lake.jobs.table_settings import MaterializeSettings
    from lakehead.lake.spark import spark_session

    tables = {dataset.topic: read_table(dataset) for dataset in DATASETS}
    with _broker(stage, place) as address:
        _fill(stage, place, address, tables)

        stage.step("Query by Spark SQL, straight from the stream objects")
        stage.statement(QUERY.format(flights="flights"))
        with stage.waiting("Starting Spark"):
            spark = spark_session(app_name="lakehead-demo")
        with stage.waiting("Spark reads the topics"):
            make_views(spark, place.store)
            from_topics = query_delays(spark, "flights")
        stage.result(from_topics)

        stage.step("Turn the topic into a Delta table, each record once")
        settings = MaterializeSettings(path=place.store, topic="flights", table=place.table)
        with stage.waiting("Materializing flights"):
            result = materialize(settings)
        stage.say(f"{result.records:,} rows, {result.bytes_written / 1e6:.1f} MB of Parquet")
        with stage.waiting("The same query to the table"):
            from_table = query_delays(spark, table_in_spark(spark, place.table))

        stage.step("Compare with the source's own DataFrames (pandas)")
        wanted = reference(tables["flights"], tables["airlines"])
        check_equal("the topics", from_topics, wanted)
        check_equal("the Delta table", from_table, wanted)
        stage.comparison({"topics": from_topics, "Delta table": from_table, "pandas": wanted})
        stage.say(
            f"[green]The same result three times:[/] {len(wanted)} airlines, to the last digit"
        )
        spark.stop()


def _fresh_place(folder: Path | None, store: str, wal: str) -> Place:
    """Return a place that holds nothing yet."""
    if store and run(holds_cluster(store)):
        raise SettingsError(f"there is a cluster in {store} already: name another prefix")
    place = _fresh_folder(folder)
    uri = store or f"file:{place}/store"
    return Place(folder=place, store=uri, wal=wal, table=default_table_uri(uri, "flights"))


@contextmanager
def _broker(stage: Stage, place: Place) -> Iterator[str]:
    """Run the demo's broker; yield its address."""
    stage.step("Start a broker")
    settings = ["--upload.age.ms", str(_UPLOAD_AGE_MS), "--store", place.store]
    if place.wal:
        settings += ["--wal", place.wal]
    with running_broker(place.folder, *settings) as address:
        log = f"write-ahead log {place.wal}" if place.wal else "write-ahead log"
        if place.is_local:
            stage.say(f"A Kafka broker at {address}: object store and {log} in {_shown(place)}")
        else:
            stage.say(f"A Kafka broker at {address}: object store {place.store}, {log}")
        yield address


def _fill(stage: Stage, place: Place, address: str, tables: "dict[str, pd.DataFrame]") -> None:
    stage.step("Stream real data into it with a Kafka client (confluent-kafka)")
    loaded = _stream(stage, address, tables)
    stage.loaded(loaded)
    with stage.waiting("The last records are on their way to the object store"):
        _wait_uploaded(place.store, loaded)


def _fresh_folder(wanted: Path | None) -> Path:
    """Return a folder that is new or empty, made if need be."""
    if wanted is None:
        names = ("lakehead-demo" if n == 1 else f"lakehead-demo-{n}" for n in count(1))
        wanted = next(path for name in names if not (path := Path(name)).exists())
    if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise LakeheadError(f"{wanted} is not an empty folder: name another one")
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted.absolute()


def _stream(stage: Stage, address: str, tables: "dict[str, pd.DataFrame]") -> list[Loaded]:
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    admin = KafkaAdmin(address)
    loaded = []
    with stage.bars() as bars:
        tasks = {d.topic: bars.add_task(d.topic, total=len(tables[d.topic])) for d in DATASETS}
        for dataset in DATASETS:
            admin.create_topic(dataset.topic, dataset.partitions, {})
            loaded.append(
                load(
                    address,
                    dataset.topic,
                    messages(dataset, tables[dataset.topic]),
                    partial(_advance, bars, tasks[dataset.topic]),
                )
            )
    return loaded


def _advance(bars: Progress, task: TaskID, done: int) -> None:
    bars.update(task, completed=done)


def _wait_uploaded(store: str, loaded: list[Loaded]) -> None:
    """Wait until the metadata log names objects for every record."""
    deadline = time.perf_counter() + _UPLOAD_S
    while True:
        state = run(load_state(store))
        missing = [
            topic.topic
            for topic in loaded
            if sum(state.streams[s].end_offset for s in state.topics[topic.topic].partitions)
            < topic.records
        ]
        if not missing:
            return
        if time.perf_counter() > deadline:
            raise LakeheadError(f"{', '.join(missing)}: not uploaded within {_UPLOAD_S:.0f} s")
        time.sleep(0.1)


def _short(path: Path) -> str:
    """Return a path as a user in the current folder would write it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else f"./{relative}"


def _command() -> str:
    """Return how this very command is called from the current folder."""
    called = Path(sys.argv[0])
    if called.name != "lakehead":
        return "lakehead"
    on_path = any(Path(folder) == called.absolute().parent for folder in os.get_exec_path())
    return "lakehead" if on_path else shlex.quote(os.path.relpath(called))


def _shown(place: Place) -> str:
    """Return where the data is, as `--path` takes it."""
    return _short(place.folder) if place.is_local else place.store


def _finish(stage: Stage, place: Place) -> None:
    path, command = shlex.quote(_shown(place)), _command()
    python = shlex.quote(os.path.relpath(sys.executable))
    store = f"{_short(place.folder)}/store" if place.is_local else place.store
    snippet = (
        "from lakehead.lake.spark import spark_session; "
        "spark_session().read.format('lakehead').options("
        f"path='{store}', subscribe='weather').load().show(3)"
    )
    sql = "SELECT origin, count(*) AS flights FROM flights GROUP BY origin"
    start = f"{command} start --data {shlex.quote(_short(place.folder))}"
    start += "" if place.is_local else f" --store {shlex.quote(place.store)}"
    start += f" --wal {shlex.quote(place.wal)}" if place.wal else ""
    stage.step("Try next")
    stage.commands(
        [
            ("look at the topics, no broker needed", f"{command} topics list --path {path}"),
            ("serve them again to any Kafka client", start),
            ("in another terminal", "kcat -b localhost:9092 -C -t flights -o beginning -c 3"),
            (
                "run your own queries",
                f'{command} sql --path {path} --json-values flights -e "{sql}"',
            ),
            ("read a topic in Spark", f'{python} -c "{snippet}"'),
        ]
    )
    stage.console.print(f"\nDone in {stage.seconds:.0f} s. The data stays in {_shown(place)}\n")
