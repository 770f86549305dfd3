"""Pages of the console of a large cluster, and the jobs that have changed one."""

import time
from dataclasses import replace
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
from lakehead.storage.metadata.state import MetadataImage, WriterState
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
