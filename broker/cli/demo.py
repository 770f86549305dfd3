"""`lakehead demo`: the whole way once, on real data, with the answer checked at the end."""

import os
import shlex
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, TaskID

from broker.cli.cluster import load_state, run
from broker.cli.demonstration.answers import QUESTION, ask, check_equal, make_views, reference
from broker.cli.demonstration.broker_process import running_broker
from broker.cli.demonstration.dataset import DATASETS, messages, read_table
from broker.cli.demonstration.loading import Loaded, load
from broker.cli.demonstration.stage import Stage
from broker.cli.materialize import missing_extra
from storage.errors import LakeheadError

if TYPE_CHECKING:
    import pandas as pd

_UPLOAD_S = 60.0
_UPLOAD_AGE_MS = 1_000


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Where to leave the data: a new or empty folder. [default: ./lakehead-demo, or "
            "the next free number]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Stream 336,776 flights through a broker, ask Spark SQL, make a Delta table, compare answers.

    Starts a broker of its own and stops it at the end. Leaves the data and says where.
    """
    place = _fresh_folder(folder)
    stage = Stage()
    stage.title(f"data in {_short(place)}")
    try:
        from lake.jobs.materialize import MaterializeSettings, materialize
        from lake.spark import check_java, spark_session
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    check_java()
    tables = {dataset.topic: read_table(dataset) for dataset in DATASETS}
    store, delta = f"file:{place}/store", f"{place}/tables/flights"

    stage.step("Start a broker")
    with running_broker(place, "--upload.age.ms", str(_UPLOAD_AGE_MS)) as address:
        stage.say(f"A Kafka broker at {address}: object store and log in {_short(place)}")

        stage.step("Stream real data into it with a Kafka client (confluent-kafka)")
        loaded = _stream(stage, address, tables)
        stage.loaded(loaded)
        with stage.waiting("The last records are on their way to the object store"):
            _wait_uploaded(place, loaded)

        stage.step("Ask Spark SQL, straight from the stream objects")
        stage.statement(QUESTION.format(flights="flights"))
        with stage.waiting("Starting Spark"):
            spark = spark_session(app_name="lakehead-demo")
        with stage.waiting("Spark reads the topics"):
            make_views(spark, store)
            from_topics = ask(spark, "flights")
        stage.answer(from_topics)

        stage.step("Turn the topic into a Delta table, each record once")
        with stage.waiting("Materializing flights"):
            result = materialize(MaterializeSettings(path=store, topic="flights", table=delta))
        stage.say(f"{result.records:,} rows, {result.bytes_written / 1e6:.1f} MB of Parquet")
        with stage.waiting("The same question to the table"):
            from_table = ask(spark, f"delta.`{delta}`")

        stage.step("Compare with the source's own DataFrames (pandas)")
        wanted = reference(tables["flights"], tables["airlines"])
        check_equal("the topics", from_topics, wanted)
        check_equal("the Delta table", from_table, wanted)
        stage.comparison({"topics": from_topics, "Delta table": from_table, "pandas": wanted})
        stage.say(
            f"[green]The same answer three times:[/] {len(wanted)} airlines, to the last digit"
        )
        spark.stop()
    _finish(stage, place)


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
    from broker.cli.kafka_admin import KafkaAdmin

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


def _wait_uploaded(place: Path, loaded: list[Loaded]) -> None:
    """Wait until the metadata log names objects for every record."""
    deadline = time.perf_counter() + _UPLOAD_S
    while True:
        state = run(load_state(str(place)))
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


def _finish(stage: Stage, place: Path) -> None:
    here, command = shlex.quote(_short(place)), _command()
    python = shlex.quote(os.path.relpath(sys.executable))
    snippet = (
        "from lake.spark import spark_session; "
        "spark_session().read.format('lakehead').options("
        f"path='{_short(place)}/store', subscribe='weather').load().show(3)"
    )
    sql = "SELECT origin, count(*) AS flights FROM flights GROUP BY origin"
    stage.step("Try next")
    stage.commands(
        [
            ("look at the topics, no broker needed", f"{command} topics list --path {here}"),
            ("serve them again to any Kafka client", f"{command} start --data {here}"),
            ("in another terminal", "kcat -b localhost:9092 -C -t flights -o beginning -c 3"),
            ("ask your own questions", f'{command} sql --path {here} --json flights -e "{sql}"'),
            ("read a topic in Spark", f'{python} -c "{snippet}"'),
        ]
    )
    stage.console.print(f"\nDone in {stage.seconds:.0f} s. The data stays in {_short(place)}\n")
