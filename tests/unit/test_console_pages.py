"""Pages of the console of a large cluster, and the jobs that have changed one."""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from immutables import Map

from lakehead.broker.console.job_pages import CONNECTOR, DEAD_LETTERS, JobPages, last_writers
from lakehead.broker.console.pages import tables_page, topics_page, with_text
from lakehead.broker.console.renderer import Renderer
from lakehead.connectors.pipelines import dead_letter_topic
from lakehead.connectors.runtime.positions import default_topic
from lakehead.connectors.settings import ConnectorSettings
from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_record import Run, RunKey
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CreateTopic
from lakehead.storage.metadata.state import MetadataImage, WriterState
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import ObjectMeta
from tests.support.topic_catalogs import image

TOPICS = 10_000
PAGE_CPU_S = 1.5
"""More than ten times what a page takes: the machine of a test may be slow."""


@pytest.fixture(scope="module")
def cluster() -> MetadataImage:
    """Every topic declares a table."""
    state = image({f"topic-{number:05}": 1 for number in range(TOPICS)})
    configs = Map({"lakehead.table.enable": "true", "lakehead.table.value.format": "json"})
    return replace(
        state,
        topics=Map({name: replace(one, configs=configs) for name, one in state.topics.items()}),
    )


def test_a_page_of_ten_thousand_topics_or_tables_is_made_at_once(cluster: MetadataImage) -> None:
    renderer = Renderer(cast(Any, None), cast(Any, None))
    names = list(cluster.topics)
    begun = time.process_time()
    topics = topics_page(cluster, with_text(names, "", internal=False), page=50)
    shown = renderer.render("topics.html", text="", internal=False, **topics)
    between = time.process_time()
    tables = tables_page(cluster, with_text(names, "9", internal=True), page=2)
    listed = renderer.render("tables.html", text="9", source="", **tables)
    assert between - begun < PAGE_CPU_S
    assert time.process_time() - between < PAGE_CPU_S
    assert (topics["total"], topics["pages"], len(topics["topics"])) == (TOPICS, 100, 100)
    assert b"topic-04950" in shown.body
    assert tables["total"] == sum("9" in name for name in names)
    assert listed.body.count(b"data-table=") == 100


def test_the_last_writer_of_each_kind_of_job_is_found_and_nodes_are_none() -> None:
    writers = {
        "0/aa": 9,
        "maintenance/01": 3,
        "maintenance/02": 7,
        "table-writer/03": 8,
        "restore": 1,
    }
    state = MetadataImage(
        writers=Map({name: WriterState(entry=n, nonce="") for name, n in writers.items()})
    )
    assert last_writers(state) == [
        ("table-writer", "table-writer/03", 8),
        ("maintenance", "maintenance/02", 7),
        ("restore", "restore", 1),
    ]


async def test_a_connector_whose_topic_is_deleted_meanwhile_has_no_status() -> None:
    name = f"{CONNECTOR}orders"
    metadata = SimpleNamespace(store=None, state=MetadataImage())
    node = SimpleNamespace(
        engine=SimpleNamespace(metadata=metadata, reader=None), topics=SimpleNamespace(led=tuple)
    )
    pages = JobPages(cast(Any, SimpleNamespace(node=node)))
    assert await pages._status(image({name: 1}).topics[name], "orders") == {}


def test_connectors_are_found_by_the_names_that_they_give_to_topics() -> None:
    settings = msgspec.convert(
        {
            "name": "orders",
            "source": {"type": "topic", "topics": ["raw"]},
            "sink": {"topic": "clean", "on_error": "dead_letter"},
        },
        ConnectorSettings,
    )
    assert default_topic("orders") == f"{CONNECTOR}orders"
    assert dead_letter_topic(settings).endswith(DEAD_LETTERS)


class CountingStore(MemoryStore):
    """Counts the objects that are read, and the listings."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.lists = 0

    async def get(self, key: str) -> bytes:
        self.gets += 1
        return await super().get(key)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        self.lists += 1
        return await super().list(prefix, start_after=start_after, limit=limit)


async def test_the_page_of_jobs_reads_each_commit_and_each_record_of_a_run_once() -> None:
    """It is loaded again every few seconds, by each of its viewers."""
    store, clock = CountingStore(), SystemClock()
    log = await MetadataLog.open(store, writer_id="sweep/1", clock=clock, rng=Random(1))
    await log.commit([CreateTopic(name="t", topic_id="ab" * 16)])
    for number in range(3):
        run = Run(job="sweep", holder="h", started_ms=number, updated_ms=clock.now_ms())
        await store.create(RunKey(f"{number:013d}-{'a' * 16}", 0).key, [run.body()])
    now_s = 0.0
    shown_clock = SimpleNamespace(now_ms=clock.now_ms, monotonic=lambda: now_s)
    node = SimpleNamespace(engine=SimpleNamespace(metadata=log), state=log.state, clock=shown_clock)
    pages = JobPages(cast(Any, SimpleNamespace(node=node)))

    async def load() -> tuple[int, int]:
        """Return the numbers of objects that are read, and of listings, for a page."""
        store.gets = store.lists = 0
        assert [row["kind"] for row in await pages._commits()] == ["sweep"]
        assert len(await pages._newest_runs()) == 3
        return store.gets, store.lists

    assert await load() == (1 + 3, 1)
    assert await load() == (0, 0)
    now_s = 10.0
    assert await load() == (0, 1)
    node.state = await log.commit([CreateTopic(name="u", topic_id="cd" * 16)])
    assert await load() == (1, 0)
