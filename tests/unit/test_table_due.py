"""Which declared tables are due, by the metadata alone."""

import pytest

from lakehead.lake.declaration.table_declaration import PREFIX, TableDeclaration
from lakehead.lake.jobs.table_due import Lag, declared_tables, is_due, lag_of
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.feature_level import BASE_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage

TOPIC = "a" * 32


def entry(*records: Record) -> Entry:
    return Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=0, records=records)


def committed(number: int, stream: int, start: int, end: int) -> r.CommitObjects:
    span = r.CommittedRange(
        stream_id=stream, epoch=0, start_offset=start, end_offset=end, max_timestamp=0, size=100
    )
    made = r.CommittedObject(
        key=f"data/{number}", kind="so", size=100, created_ms=1000 * number, ranges=(span,)
    )
    return r.CommitObjects(node_id=0, node_epoch=0, objects=(made,))


@pytest.fixture
def state() -> MetadataImage:
    """Two partitions: offsets 0-10 made at 1 s and 10-20 at 3 s; and 0-5 at 2 s."""
    return apply_entry(
        MetadataImage(),
        entry(
            r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1),
            r.CreateTopic(name="t", topic_id=TOPIC, configs={f"{PREFIX}enable": "true"}),
            r.CreateTopic(name="plain", topic_id="b" * 32),
            r.CreateTopic(
                name="wrong",
                topic_id="c" * 32,
                configs={f"{PREFIX}enable": "true", f"{PREFIX}mode": "sideways"},
            ),
            *(r.CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in (0, 1)),
            *(r.OpenStream(stream_id=n, epoch=0, node_id=0, node_epoch=0) for n in (0, 1)),
            committed(1, 0, 0, 10),
            committed(2, 1, 0, 5),
            committed(3, 0, 10, 20),
        ),
    )


@pytest.mark.parametrize(
    ("offsets", "records", "size", "oldest"),
    [
        ((), 25, 300, 1000),
        ((10,), 15, 200, 2000),
        ((10, 5), 10, 100, 3000),
        ((12, 3), 10, 200, 2000),
        ((20, 5), 0, 0, -1),
        ((30, 5), 0, 0, -1),  # a tail that is not in objects yet
    ],
)
def test_how_far_a_table_is_behind(
    state: MetadataImage, offsets: tuple[int, ...], records: int, size: int, oldest: int
) -> None:
    lag = lag_of(state, state.topics["t"], offsets)
    assert lag == Lag(records=records, size_bytes=size, oldest_ms=oldest)


def test_what_retention_removed_is_not_waited_for(state: MetadataImage) -> None:
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=20)))
    assert lag_of(state, state.topics["t"], ()).records == 5


def test_a_table_is_due_at_half_of_its_freshness_or_when_there_is_a_file() -> None:
    declared = TableDeclaration.parse(
        "t", TOPIC, {f"{PREFIX}freshness.ms": "2000", f"{PREFIX}file.bytes": str(1 << 20)}
    )
    young = Lag(records=1, size_bytes=10, oldest_ms=1000)
    assert not is_due(declared, young, 1999)
    assert is_due(declared, young, 2000)
    assert is_due(declared, Lag(records=1, size_bytes=1 << 20, oldest_ms=1000), 1000)
    assert not is_due(declared, Lag(), 10**12)


def test_a_table_is_due_whose_records_came_by_a_clock_that_is_ahead() -> None:
    """This clock has gone back, or a node's is wrong: else the table waits until they agree."""
    declared = TableDeclaration.parse("t", TOPIC, {f"{PREFIX}freshness.ms": "60000"})
    lag = Lag(records=1, size_bytes=10, oldest_ms=3_600_000)
    assert is_due(declared, lag, 1000)
    assert not is_due(declared, lag, 3_596_000)


def test_declarations_are_those_of_topics_that_ask_and_wrong_ones_are_told(
    state: MetadataImage,
) -> None:
    found = declared_tables(state)
    assert set(found) == {"t", "wrong"}
    assert isinstance(found["t"], TableDeclaration)
    assert isinstance(found["wrong"], SettingsError)
    assert "topic wrong" in str(found["wrong"])
    assert set(declared_tables(state, ["t", "plain"])) == {"t"}
