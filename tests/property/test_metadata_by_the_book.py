"""Random records, judged by the rules and by a reader that was written from the formats alone: the
same entries are refused, and the same nodes and streams are left, also through a checkpoint.
"""

import asyncio
import copy
import json
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.checkpoint import decode, encode
from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.entry import encode_entry
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage
from tests.property.test_cluster_state import NODES, SMALL, STREAMS, record_values
from tests.support import metadata_by_the_book as book
from tests.support.repetitions import examples

JUDGED_BY_BOTH = (
    r.ClusterCreated,
    r.RegisterNode,
    r.FenceNode,
    r.StartLog,
    r.AcceptLogLoss,
    r.DrainNode,
    r.RetireNode,
    r.CreateTopic,
    r.DeleteTopic,
    r.CreateStream,
    r.AssignStreams,
    r.OpenStream,
    r.CloseStream,
    r.TrimStream,
    r.DeleteStream,
    r.CommitObjects,
    r.InheritTail,
    r.CommitTail,
    r.ControllerLease,
    r.TakeTable,
    r.RequestTable,
    r.TableProgress,
)
judged = record_values.filter(lambda record: isinstance(record, JUDGED_BY_BOTH))
Objects = tuple[r.CommittedObject, ...]
TAIL_KEYS = st.sampled_from(["data/t0", "data/t1"])


def objects_of(kind: str, keys: st.SearchStrategy[str]) -> st.SearchStrategy[Objects]:
    """One object with a range of stream 0."""
    spans = st.builds(
        r.CommittedRange,
        stream_id=st.just(0),
        epoch=SMALL,
        start_offset=st.integers(0, 1),
        end_offset=st.integers(1, 2),
        max_timestamp=st.just(1),
        size=st.just(1),
        state=st.sampled_from(["", r.HEADERS]),
    )
    return st.builds(
        r.CommittedObject,
        key=keys,
        kind=st.just(kind),
        size=st.just(1),
        created_ms=st.just(1),
        ranges=spans.map(lambda span: (span,)),
    ).map(lambda one: (one,))


ownership: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        r.InheritTail,
        node_id=st.just(0),
        node_epoch=SMALL,
        taker_id=NODES,
        taker_epoch=SMALL,
        objects=objects_of(r.TAIL, TAIL_KEYS),
    ),
    st.builds(
        r.CommitTail,
        node_id=st.just(0),
        taker_id=NODES,
        taker_epoch=SMALL,
        sources=TAIL_KEYS.map(lambda key: (key,)),
        objects=objects_of("so", st.sampled_from(["data/s0", "data/s1"])),
        streams=st.just((0,)),
    ),
    st.builds(
        r.RegisterNode,
        node_id=NODES,
        epoch=SMALL,
        incarnation=st.just("i"),
        host=st.just("h"),
        port=st.just(1),
    ),
    st.builds(r.FenceNode, node_id=NODES, epoch=SMALL, term=st.integers(-1, 2)),
    st.builds(
        r.StartLog,
        node_id=NODES,
        node_epoch=SMALL,
        log_id=st.sampled_from(["", "a" * 32]),
        position=st.integers(-1, 3),
    ),
    st.builds(
        r.AcceptLogLoss,
        node_id=NODES,
        node_epoch=SMALL,
        log_id=st.sampled_from(["", "b" * 32]),
        streams=SMALL,
    ),
    st.builds(r.ControllerLease, node_id=NODES, node_epoch=SMALL, term=SMALL),
    st.builds(
        r.AssignStreams,
        node_id=NODES,
        stream_ids=st.lists(STREAMS.map(lambda n: n % 2), max_size=2).map(tuple),
        is_preferred=st.booleans(),
        term=st.integers(-1, 2),
    ),
    st.builds(
        r.OpenStream, stream_id=st.integers(0, 1), epoch=SMALL, node_id=NODES, node_epoch=SMALL
    ),
    st.builds(r.CloseStream, stream_id=st.integers(0, 1), epoch=SMALL),
    st.builds(
        r.CommitObjects,
        node_id=NODES,
        node_epoch=SMALL,
        objects=st.just(()),
        wal_epoch=SMALL,
        taker_id=NODES,
        taker_epoch=SMALL,
        wal_position=st.integers(-1, 3),
    ),
    st.builds(
        r.TakeTable,
        topic_id=st.just("a" * 32),
        holder=st.sampled_from(["", "me", "you"]),
        term=SMALL,
        until_ms=st.integers(-1, 2),
    ),
    st.builds(
        r.RequestTable,
        topic_id=st.just("a" * 32),
        requester=st.sampled_from(["", "me", "you"]),
        until_ms=st.integers(-1, 2),
    ),
    st.builds(
        r.TableProgress,
        topic_id=st.just("a" * 32),
        term=SMALL,
        offsets=st.lists(st.integers(-1, 3), max_size=3).map(tuple),
    ),
)
"""What moves ownership, more often than chance would have it."""


def entry(*records: Record) -> Entry:
    return Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=0, records=records)


START = entry(
    r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1, wal="block:/w"),
    r.RegisterNode(node_id=1, epoch=0, incarnation="j", host="h", port=2),
    r.CreateTopic(name="t", topic_id="a" * 32),
    r.CreateStream(stream_id=0, topic_id="a" * 32, partition=0),
    r.CreateStream(stream_id=1, topic_id="a" * 32, partition=1),
    r.OpenStream(stream_id=0, epoch=0, node_id=0, node_epoch=0),
)


def as_book(state: MetadataImage) -> dict[str, object]:
    """What of a state the other reader knows too."""
    return {
        "nodes": {
            node.node_id: book.Node(
                node.epoch,
                node.is_fenced,
                (node.wal_epoch, node.wal_floor),
                node.is_draining,
                node.wal,
                node.host_id,
                (node.log.log_id, node.log.epoch, node.log.position),
                None
                if node.lost_log is None
                else (node.lost_log.log_id, node.lost_log.epoch, node.lost_log.streams),
            )
            for node in state.nodes.values()
        },
        "streams": {
            s.stream_id: book.Stream(
                s.epoch,
                s.node_id,
                s.is_open,
                s.start_offset,
                s.end_offset,
                s.assigned,
                s.preferred,
                [(e.start_offset, e.end_offset, e.object_key) for e in s.extents],
                s.state_from,
                [(e.start_offset, e.end_offset, e.object_key) for e in s.state_extents],
            )
            for s in state.streams.values()
        },
        "term": state.controller.term,
        "tables": {
            topic_id: book.Table(
                table.holder,
                table.term,
                table.until_ms,
                list(table.offsets),
                (table.requester, table.requested_until_ms),
            )
            for topic_id, table in state.tables.items()
        },
        "retired": dict(state.retired_nodes),
    }


def known(cluster: book.Cluster) -> dict[str, object]:
    return {
        "nodes": cluster.nodes,
        "streams": cluster.streams,
        "term": cluster.term,
        "tables": cluster.tables,
        "retired": cluster.retired,
    }


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(ownership | judged, min_size=1, max_size=2), max_size=40))
@example([[r.CreateStream(stream_id=2, topic_id="b" * 32, partition=0)]])
def test_two_readers_refuse_the_same_and_know_the_same(entries: list[list[Record]]) -> None:
    state = apply_entry(MetadataImage(), START)
    cluster = book.read_log(book.Cluster(), [encode_entry(START)])
    for records in entries:
        following = entry(*records)
        before, earlier = state, copy.deepcopy(cluster)
        try:
            state = apply_entry(state, following)
            is_refused = False
        except EntryRejected:
            is_refused = True
        cluster = book.read_log(cluster, [encode_entry(following)])
        if is_refused:
            assert known(cluster) == known(earlier)
            cluster = earlier  # the number it took is of no interest here
            continue
        assert as_book(state) == known(cluster)
        check_ownership(before, state, records)


def check_ownership(before: MetadataImage, after: MetadataImage, records: list[Record]) -> None:
    """No stream changes hands but by an open, of whom it was assigned to, from nobody or the
    recovered.
    """
    opened = {record.stream_id for record in records if isinstance(record, r.OpenStream)}
    for stream in after.streams.values():
        was = before.streams.get(stream.stream_id)
        assert stream.assigned == -1 or stream.preferred >= 0
        if was is None or (was.epoch, was.node_id) == (stream.epoch, stream.node_id):
            continue
        assert stream.stream_id in opened
        assert stream.epoch > was.epoch
        if len(records) == 1:
            assert was.assigned in (-1, stream.node_id)
            owner = before.nodes.get(was.node_id)
            is_free = not was.is_open or was.node_id == stream.node_id or owner is None
            assert is_free or owner.is_recovered  # type: ignore[union-attr]


@settings(max_examples=20, deadline=None)
@given(entries=st.lists(ownership | judged, max_size=40))
def test_a_checkpoint_read_as_parquet_knows_the_same(
    tmp_path_factory: object, entries: list[Record]
) -> None:
    created = (
        r.ClusterCreated(cluster_id="c"),
        r.FeatureLevel(name=METADATA_VERSION, level=NEWEST_LEVEL),
    )
    state = apply_entry(apply_entry(MetadataImage(), entry(*created)), START)
    for record in entries:
        try:
            state = apply_entry(state, entry(record))
        except EntryRejected:
            continue
    folder: Path = tmp_path_factory.mktemp("checkpoint")  # type: ignore[attr-defined]
    path = folder / f"{state.next_entry:020d}.parquet"

    async def write() -> MetadataImage:
        body = b"".join(await in_steps(encode(await in_steps(tables_of(state)))))
        path.write_bytes(body)
        return await in_steps(state_of("key", await in_steps(decode("key", body))))

    assert asyncio.run(write()) == state
    assert known(book.read_checkpoint(path)) == as_book(state)


def test_the_book_knows_every_record_or_says_so() -> None:
    names = {kind.__name__ for kind in JUDGED_BY_BOTH}
    text = Path(book.__file__).read_text()
    assert all(name in text or name.endswith("Stream") for name in names)
    assert json.loads(encode_entry(START))["records"][0]["wal"] == "block:/w"
