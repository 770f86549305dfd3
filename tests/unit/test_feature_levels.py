"""The feature level: what is written under it, and what becomes of what is above it."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from immutables import Map

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    EntryRejected,
    FeatureNotEnabled,
    UnsupportedFormat,
)
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.format.columns import Longs
from lakehead.storage.format.feature_level import (
    BASE_LEVEL,
    LOWEST_LEVEL,
    METADATA_VERSION,
    NEWEST_LEVEL,
)
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.additions import ADDITIONS, columns_at, fitted
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.entry import decode_entry, encode_entry, entry_key
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore, ObjectStore

VOCABULARY = Path(__file__).parents[1] / "fixtures" / "level-1" / "vocabulary.json"
TO_NEWEST = r.FeatureLevel(name=METADATA_VERSION, level=NEWEST_LEVEL)
REGISTRATION = r.RegisterNode(
    node_id=0, epoch=0, incarnation="i", host="h", port=1, min_level=1, max_level=NEWEST_LEVEL
)


async def open_log(store: ObjectStore) -> MetadataLog:
    return await MetadataLog.open(
        store, writer_id="w", clock=SystemClock(), rng=random.Random(len(str(store)))
    )


def entry_bytes(records: list[dict[str, Any]], version: int = 1) -> bytes:
    """An entry as another release would write it."""
    body = {"version": version, "writer": "w", "nonce": "n", "time_ms": 0, "records": records}
    rest = json.dumps(body).encode()[1:]
    return b'{"crc32c":"%08x",' % crc32c(rest) + rest


async def at_base_level(store: ObjectStore) -> MetadataLog:
    """The log of a cluster that a release without levels has made."""
    log = await open_log(store)
    await log.commit([r.ClusterCreated(cluster_id="c")])
    assert log.state.metadata_version == BASE_LEVEL
    return log


# Declarations.


def written_fields() -> dict[str, set[str]]:
    """The fields of all records and of the structs in them, by name of type."""
    found: dict[str, set[str]] = {}

    def walk(known: Any) -> None:
        if isinstance(known, msgspec.inspect.StructType):
            found[known.cls.__name__] = {one.name for one in known.fields}
            for one in known.fields:
                walk(one.type)
        for inner in getattr(known, "types", ()):
            walk(inner)
        if hasattr(known, "item_type"):
            walk(known.item_type)

    walk(msgspec.inspect.type_info(r.Record))
    return found


def test_each_record_and_field_since_level_1_is_declared_with_its_level() -> None:
    base = json.loads(VOCABULARY.read_text())["records"]
    records = {name for brought in ADDITIONS.values() for name in brought.records}
    fields = {
        (struct, name)
        for brought in ADDITIONS.values()
        for names in (brought.fields, brought.hints)
        for struct, added in names.items()
        for name in added
    }
    for struct, names in written_fields().items():
        if struct not in base:
            assert struct in records, f"declare {struct} in lakehead.storage.metadata.additions"
            continue
        added = {name for name in names if (struct, name) in fields}
        assert names - added == set(base[struct]), f"declare the new fields of {struct}"
    assert max(ADDITIONS) == NEWEST_LEVEL


def test_each_field_that_was_added_has_a_default() -> None:
    types = {one.__name__: one for one in msgspec_structs()}
    for brought in ADDITIONS.values():
        for names in (brought.fields, brought.hints):
            for struct, added in names.items():
                known = {one.name: one for one in msgspec.structs.fields(types[struct])}
                assert not any(known[name].required for name in added)


def msgspec_structs() -> list[type[msgspec.Struct]]:
    return [
        one for one in vars(r).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)
    ]


async def test_each_column_since_level_1_is_declared_with_its_level() -> None:
    base = json.loads(VOCABULARY.read_text())["columns"]
    found = await in_steps(tables_of(MetadataImage(features=Map({METADATA_VERSION: NEWEST_LEVEL}))))
    at_base = columns_at(found.tables, BASE_LEVEL)
    assert {table: sorted(columns) for table, columns in at_base.items()} == base


async def test_each_column_of_the_state_has_a_place_in_checkpoints() -> None:
    """A column that has none would end every node at its first checkpoint with such a row."""
    found = await in_steps(tables_of(MetadataImage(features=Map({METADATA_VERSION: NEWEST_LEVEL}))))
    columns = {name for table in found.tables.values() for name in table}
    assert columns <= checkpoint_file.SCHEMA.keys()


# What is written.


async def test_a_new_cluster_begins_at_the_newest_level() -> None:
    store = MemoryStore()
    log = await open_log(store)
    state = await log.create_cluster("c")
    assert state.metadata_version == NEWEST_LEVEL
    assert decode_entry("k", await store.get(entry_key(0))).version == NEWEST_LEVEL


async def test_at_the_base_level_nothing_is_written_that_the_release_before_does_not_know() -> None:
    store = MemoryStore()
    log = await at_base_level(store)
    await log.commit([REGISTRATION])
    body = json.loads(await store.get(entry_key(1)))
    assert body["version"] == BASE_LEVEL
    assert not {"min_level", "max_level"} & body["records"][0].keys()
    assert log.state.nodes[0].max_level == 0, "here as in every reader"
    assert (await open_log(store)).state == log.state
    found = await in_steps(tables_of(log.state))
    assert found.version == BASE_LEVEL
    assert "min_level" not in found.tables["nodes"]
    assert "features" not in found.tables


async def test_a_record_above_the_level_is_refused_before_it_is_written() -> None:
    log = await at_base_level(MemoryStore())
    with pytest.raises(FeatureNotEnabled, match=r"metadata.version 2.*lakehead features upgrade"):
        fitted([TO_NEWEST], BASE_LEVEL)
    before = log.state
    with pytest.raises(EntryRejected):
        await log.commit([r.FeatureLevel(name="nope", level=2)])
    assert log.state == before


async def test_the_entry_that_raises_the_level_has_the_new_version() -> None:
    store = MemoryStore()
    log = await at_base_level(store)
    await asyncio.gather(log.commit([TO_NEWEST]), log.commit([REGISTRATION]))
    bodies = [json.loads(await store.get(entry_key(n))) for n in range(1, log.state.next_entry)]
    assert {body["version"] for body in bodies} == {NEWEST_LEVEL}
    assert log.state.nodes[0].max_level == NEWEST_LEVEL, "what follows in the entry is at the level"
    assert log.state.features_epoch == 1
    assert (await open_log(store)).state == log.state


async def test_a_level_survives_in_checkpoints() -> None:
    log = await open_log(MemoryStore())
    await log.create_cluster("c")
    await log.commit([REGISTRATION])
    found = await in_steps(tables_of(log.state))
    assert found.version == NEWEST_LEVEL
    body = b"".join(await in_steps(checkpoint_file.encode(found)))
    again = await in_steps(state_of("k", await in_steps(checkpoint_file.decode("k", body))))
    assert again == log.state
    assert again.nodes[0].supports(NEWEST_LEVEL)
    assert not again.nodes[0].supports(NEWEST_LEVEL + 1)


# Rules.


@pytest.mark.parametrize("level", [BASE_LEVEL, 0, -1])
def test_a_level_is_never_lowered_nor_set_again(level: int) -> None:
    state = apply_records(MetadataImage(), [r.ClusterCreated(cluster_id="c"), TO_NEWEST], 0)
    for refused in (level, NEWEST_LEVEL):
        with pytest.raises(EntryRejected):
            apply_records(state, [r.FeatureLevel(name=METADATA_VERSION, level=refused)], 0)


def test_a_level_is_not_raised_above_what_a_live_node_supports() -> None:
    created: list[r.Record] = [r.ClusterCreated(cluster_id="c"), REGISTRATION, TO_NEWEST]
    state = apply_records(MetadataImage(), created, 0)
    above = r.FeatureLevel(name=METADATA_VERSION, level=NEWEST_LEVEL + 1)
    with pytest.raises(EntryRejected, match="node 0 supports levels 1 to"):
        apply_records(state, [above], 0)
    fenced = apply_records(state, [r.FenceNode(node_id=0, epoch=0), above], 0)
    assert fenced.metadata_version == NEWEST_LEVEL + 1
    again = msgspec.structs.replace(REGISTRATION, epoch=1)
    with pytest.raises(EntryRejected, match=r"supports metadata\.version 1 to"):
        apply_records(fenced, [again], 0)


# What a newer release has written.


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"type": "RecordOfTomorrow", "x": 1}, "a record RecordOfTomorrow"),
        ({"type": "ClusterCreated", "cluster_id": "c", "y": 1}, "a field ClusterCreated.y"),
        (
            {
                "type": "CommitObjects",
                "node_id": 0,
                "node_epoch": 0,
                "objects": [
                    {
                        "key": "data/a",
                        "kind": "so",
                        "size": 1,
                        "created_ms": 0,
                        "ranges": [
                            {
                                "stream_id": 0,
                                "epoch": 0,
                                "start_offset": 0,
                                "end_offset": 1,
                                "max_timestamp": 0,
                                "size": 1,
                                "z": None,
                            }
                        ],
                    }
                ],
            },
            "a field CommitObjects.objects.ranges.z",
        ),
    ],
)
def test_what_is_not_known_is_of_a_newer_release_and_neither_corrupt_nor_ignored(
    record: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade Lakehead") as caught:
        decode_entry("meta/log/7", entry_bytes([{"type": "RetireNode", "node_id": 1}, record]))
    assert named in str(caught.value)
    assert "corrupt" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "records",
    [
        [{"type": "RetireNode", "node_id": "one"}],
        [{"type": "RetireNode"}],
        [{"node_id": 1}],
        [7],
    ],
)
def test_what_is_known_and_wrong_is_corrupt(records: list[Any]) -> None:
    with pytest.raises(CorruptObject):
        decode_entry("meta/log/7", entry_bytes(records))


def test_damage_is_never_taken_for_a_newer_release() -> None:
    body = bytearray(entry_bytes([{"type": "RetireNode", "node_id": 1}]))
    at = body.index(b"RetireNode")
    body[at] ^= 1
    with pytest.raises(CorruptObject, match="checksum"):
        decode_entry("meta/log/7", bytes(body))


async def test_a_log_that_a_newer_release_went_on_with_is_refused_in_one_line() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await log.create_cluster("c")
    await store.create(entry_key(1), [entry_bytes([], version=NEWEST_LEVEL + 1)])
    with pytest.raises(UnsupportedFormat, match=r"version 3, newer than.*upgrade Lakehead"):
        await log.refresh()


@pytest.mark.parametrize("table", ["streams", "nodes", "tables_of_tomorrow"])
async def test_a_column_or_table_that_is_not_known_is_of_a_newer_release(table: str) -> None:
    state = MetadataImage(cluster_id="c", features=Map({METADATA_VERSION: NEWEST_LEVEL}))
    found = await in_steps(tables_of(state))
    columns = {**found.tables.get(table, {}), "next_entry": Longs(())}
    newer = replace(found, tables={**found.tables, table: columns})
    with pytest.raises(UnsupportedFormat, match=rf"a column {table}\.next_entry.*upgrade"):
        await in_steps(state_of("k", newer))


def test_the_levels_that_are_supported_begin_at_the_base() -> None:
    assert LOWEST_LEVEL == BASE_LEVEL, "a cluster of the release before is served"
    body = encode_entry(
        r.Entry(version=1, writer="w", nonce="n", time_ms=0, records=(REGISTRATION,))
    )
    assert decode_entry("k", body).records == (REGISTRATION,)
