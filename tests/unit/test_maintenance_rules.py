"""When compaction and retention are due, by configs and metadata alone."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from lakehead.broker.configs.entries import broker_values, maintenance_defaults, topic_value
from lakehead.broker.maintenance.beside import environment
from lakehead.broker.setting_sources import load
from lakehead.broker.settings import Settings
from lakehead.storage.maintenance.configs import (
    ALL_BROKERS,
    BROKER_DEFAULTS,
    CLEANER_MEMORY,
    MAINTENANCE_CONFIGS,
    MaintenanceValues,
)
from lakehead.storage.maintenance.rules import DueWork, due_of, is_compacted, topic_rules
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import COMPACTED
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import TABLE_RETENTION_WAIT, MetadataImage
from tests.unit.test_metadata_rules import TOPIC, committed, entry, start

VALUES = MaintenanceValues(places=(BROKER_DEFAULTS,))
DAY_MS = 86_400_000


def uploads(*objects: tuple[int, int]) -> MetadataImage:
    """A topic with one partition and objects of ten offsets each: (size, newest timestamp)."""
    state = start()
    for number, (size, newest_ms) in enumerate(objects):
        made = committed(f"data/{number}", number * 10, number * 10 + 10, "so")
        span = msgspec.structs.replace(made.ranges[0], size=size, max_timestamp=newest_ms)
        made = msgspec.structs.replace(made, ranges=(span,), created_ms=number)
        commit = r.CommitObjects(node_id=0, node_epoch=0, objects=(made,))
        state = apply_entry(state, entry(commit))
    return state


def compacted(state: MetadataImage, until: int, size: int) -> MetadataImage:
    """The state after compaction of all below an offset into one object."""
    (stream,) = state.streams.values()
    sources = [e.object_key for e in stream.extents if e.end_offset <= until]
    made = committed(f"data/c{until}", 0, until, COMPACTED)
    span = msgspec.structs.replace(made.ranges[0], size=size)
    made = msgspec.structs.replace(made, ranges=(span,))
    return apply_entry(state, entry(r.ReplaceObjects(sources=tuple(sources), objects=(made,))))


def due(state: MetadataImage, now_ms: int, **configs: str) -> list[DueWork]:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    state = apply_entry(state, entry(r.TopicConfig(topic_id=TOPIC, configs={**named})))
    return list(due_of(state, state.topics["t"], VALUES, now_ms))


def words(works: Sequence[DueWork]) -> list[str]:
    return [work.words for work in works]


def test_a_partition_is_compacted_when_enough_of_it_is_dirty() -> None:
    state = uploads((100, 5), (100, 6), (100, 7))
    assert words(due(state, 10, cleanup_policy="compact")) == ["compact from 0"]
    assert due(state, 10, cleanup_policy="delete") == []
    state = compacted(state, 20, 100)
    half = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.5"}
    assert due(state, 10, **half) == []
    assert words(due(state, 10, **half | {"min_cleanable_dirty_ratio": "0.49"})) == [
        "compact from 20"
    ]
    assert due(compacted(state, 30, 1), 10, **half | {"min_cleanable_dirty_ratio": "0"}) == []


def test_lags_of_compaction_are_kept() -> None:
    state = compacted(uploads((100, 1000), (1, 2000), (1, 3000)), 10, 100)
    plain = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    lag = {**plain, "min_compaction_lag_ms": "500"}
    assert due(state, 2400, **lag) == []
    (work,) = due(state, 2500, **lag)
    assert (work.offset, work.rules.compaction_lag_min_ms) == (10, 500)
    most = {**plain, "min_cleanable_dirty_ratio": "0.9", "max_compaction_lag_ms": "100"}
    assert due(state, 101, **most) == []  # the object was written at 1
    assert words(due(state, 102, **most)) == ["compact from 10"]


def test_retention_takes_whole_objects_of_which_all_is_old() -> None:
    state = uploads((100, 1000), (100, 5000), (100, 2000), (100, 9000))
    old = {"retention_ms": "1000"}
    assert due(state, 2000, **old) == []
    assert words(due(state, 2001, **old)) == ["trim to 10"]
    assert words(due(state, 6000, **old)) == ["trim to 10"]  # the second holds a younger one
    assert words(due(state, 6001, **old)) == ["trim to 30"]
    assert words(due(state, 10_001, **old)) == ["trim to 40"]
    assert due(state, 10**15, retention_ms="-1") == []
    assert due(state, 10_001, **old, cleanup_policy="compact")[0].is_compaction
    assert words(due(state, 2001, **old, cleanup_policy="compact,delete")) == ["trim to 10"]


def test_an_object_without_timestamps_is_as_old_as_its_upload() -> None:
    state = uploads((100, -1), (100, -1))
    assert words(due(state, 1001, retention_ms="1000")) == ["trim to 10"]
    assert due(state, 1000, retention_ms="1000") == []


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 300))
def test_what_is_left_by_size_is_the_least_that_is_enough(sizes: list[int], most: int) -> None:
    state = uploads(*((size, 0) for size in sizes))
    works = due(state, 0, retention_bytes=str(most), retention_ms="-1")
    start_at = works[0].offset // 10 if works else 0
    left = sizes[start_at:]
    assert sum(left) >= most or not start_at
    assert sum(left[1:]) < most or not left


def test_the_defaults_are_kafkas_or_the_clusters() -> None:
    rules = topic_rules({}, VALUES)
    assert (rules.is_deleted, rules.is_compacted) == (True, False)
    assert (rules.retention_ms, rules.retention_bytes) == (7 * DAY_MS, -1)
    assert (rules.dirty_ratio_min, rules.delete_retention_ms) == (0.5, DAY_MS)
    shared = MaintenanceValues(places=({"log.cleanup.policy": "compact"}, BROKER_DEFAULTS))
    assert topic_rules({}, shared).is_compacted
    state = start()
    assert is_compacted(state.topics["t"], shared)
    assert not is_compacted(state.topics["t"], VALUES)


def test_one_node_does_it_for_the_cluster() -> None:
    state = start()
    assert state.is_lowest(0)
    assert not state.is_lowest(1)
    state = apply_entry(state, entry(r.FenceNode(node_id=0, epoch=0)))
    assert state.is_lowest(1)


def test_the_process_is_told_the_settings_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(log_retention_ms=5, data="d", node_id=3, auto_create_topics_enable=False)
    told = dict(environment(settings))
    assert load({}, told, None) == settings


def test_retention_waits_for_a_declared_table() -> None:
    state = uploads((100, 5), (100, 6), (100, 7))
    state = apply_entry(state, entry(r.TopicConfig(topic_id=TOPIC, configs={"retention.ms": "10"})))
    assert words(due(state, 100)) == ["trim to 30"]
    state = apply_entry(
        state, entry(r.TopicConfig(topic_id=TOPIC, configs={"lakehead.table.enable": "true"}))
    )
    assert words(due(state, 100)) == []
    take = r.TakeTable(topic_id=TOPIC, holder="a", term=0, until_ms=99)
    state = apply_entry(state, entry(take))
    for held, expected in ((0, []), (13, ["trim to 13"]), (30, ["trim to 30"])):
        progress = r.TableProgress(topic_id=TOPIC, term=0, offsets=(held,))
        assert words(due(apply_entry(state, entry(progress)), 100)) == expected


def test_retention_waits_for_a_declared_table_no_longer_than_it_may() -> None:
    """From the upload on, or from the newest record: old records have their time in the topic."""
    state = uploads((100, -1), (100, 50), (100, 7))  # uploaded at 0, 1 and 2
    wait = {"lakehead.table.enable": "true", "lakehead.table.retention.wait.ms": "1000"}
    configs = r.TopicConfig(topic_id=TOPIC, configs={"retention.ms": "10", **wait})
    state = apply_entry(state, entry(configs))
    assert words(due(state, 1010)) == []
    assert words(due(state, 1011)) == ["trim to 10"]
    assert words(due(state, 1060)) == ["trim to 10"]  # the second has a record of 50
    assert words(due(state, 1061)) == ["trim to 30"]
    take = r.TakeTable(topic_id=TOPIC, holder="a", term=0, until_ms=99)
    progress = r.TableProgress(topic_id=TOPIC, term=0, offsets=(15,))
    held = apply_entry(apply_entry(state, entry(take)), entry(progress))
    assert words(due(held, 1011)) == ["trim to 15"]
    assert words(due(held, 1061)) == ["trim to 30"]
    by_size = {"retention_ms": "-1", "retention_bytes": "150"}
    assert words(due(held, 1000, **by_size)) == ["trim to 10"]
    assert words(due(state, 1000, **by_size)) == []
    assert words(due(state, 1001, **by_size)) == ["trim to 10"]
    for longest in (str((1 << 63) - 1), "soon"):
        assert words(due(state, 1 << 62, lakehead_table_retention_wait_ms=longest)) == []
    default = replace(
        state.topics["t"], configs=state.topics["t"].configs.delete(TABLE_RETENTION_WAIT)
    )
    assert default.table_retention_wait_ms == 30 * DAY_MS


@pytest.mark.parametrize("name", sorted(MAINTENANCE_CONFIGS))
def test_upkeep_and_brokers_find_the_same_values(name: str) -> None:
    """From the topic's own down to the built-in default, each in its turn."""
    synonym = MAINTENANCE_CONFIGS[name].synonym
    own, shared = ({synonym: " 7 "}, {synonym: "8"})
    settings = Settings(log_retention_ms=3, log_retention_bytes=4, log_cleanup_policy="compact")
    for configs in ({name: "5"}, {}):
        for node in ({settings.node_id: Map(own)}, {}):
            for cluster in ({ALL_BROKERS: Map(shared)}, {}):
                for static in (settings, Settings()):
                    state = replace(start(), broker_configs=Map({**node, **cluster}))
                    expected = topic_value(name, configs, broker_values(state, static))
                    values = maintenance_defaults(static).values(state)
                    assert values.of_topic(name, configs) == expected
    assert MaintenanceValues(places=(BROKER_DEFAULTS,)).of_broker(CLEANER_MEMORY) == str(
        Settings().log_cleaner_dedupe_buffer_size
    )
