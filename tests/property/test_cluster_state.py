"""The metadata state under random records: rules hold, replay agrees, nothing is half applied."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.feature_level import BASE_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.entry import decode_entry, encode_entry
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry, apply_records
from lakehead.storage.metadata.state import MetadataImage, StreamState
from tests.support.repetitions import examples

NODES = st.integers(0, 1)
STREAMS = st.integers(0, 3)
SMALL = st.integers(0, 3)
OFFSETS = st.integers(0, 12)
TOPIC_IDS = st.sampled_from(["a" * 32, "b" * 32])
KEYS = st.integers(0, 9).map(lambda n: f"data/00/{n}")

ranges = st.builds(
    lambda stream, epoch, start, length, kept: r.CommittedRange(
        stream_id=stream,
        epoch=epoch,
        start_offset=start,
        end_offset=start + length,
        max_timestamp=start,
        size=length,
        state=kept,
        state_since=start if kept == r.INCREMENTAL else -1,
    ),
    STREAMS,
    SMALL,
    OFFSETS,
    st.integers(0, 4),
    st.sampled_from(["", r.WHOLE, r.HEADERS, r.INCREMENTAL]),
)
objects = st.builds(
    lambda key, spans: r.CommittedObject(
        key=key, kind="sso", size=1, created_ms=0, ranges=tuple(spans)
    ),
    KEYS,
    st.lists(ranges, min_size=1, max_size=3),
)
configs = st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.just("1"))
acls = st.lists(
    st.builds(
        r.AclBinding,
        resource_type=st.just("topic"),
        resource_name=st.sampled_from(["t", "u"]),
        pattern_type=st.just("literal"),
        principal=st.sampled_from(["User:a", "User:é"]),
        host=st.just("*"),
        operation=st.just("read"),
        permission=st.just("allow"),
    ),
    max_size=2,
).map(tuple)
users = st.sampled_from(["a", "b"])
mechanisms = st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"])
record_values: st.SearchStrategy[Record] = st.one_of(
    st.builds(r.ClusterCreated, cluster_id=st.just("c")),
    st.builds(r.BrokerConfig, node_id=st.integers(-1, 1), configs=configs),
    st.builds(r.GroupConfig, group=st.sampled_from(["", "g", "h"]), configs=configs),
    st.builds(r.ClientMetricsConfig, subscription=st.sampled_from(["", "m", "n"]), configs=configs),
    st.builds(
        r.ClientQuota,
        entity=st.dictionaries(st.sampled_from(["user", "client-id"]), st.none() | users),
        values=st.dictionaries(st.sampled_from(["rate", "share"]), st.none() | st.floats(-1, 9)),
    ),
    st.builds(r.AclCreate, acls=acls),
    st.builds(r.AclDelete, acls=acls),
    st.builds(
        r.ScramUpsert,
        user=users,
        mechanism=mechanisms,
        salt=st.binary(max_size=3),
        stored_key=st.just(b"k"),
        server_key=st.just(b"s"),
        iterations=st.integers(0, 4096),
    ),
    st.builds(r.ScramDelete, user=users, mechanism=mechanisms),
    st.builds(r.DeleteStream, stream_id=STREAMS),
    st.builds(
        r.RegisterNode,
        node_id=NODES,
        epoch=SMALL,
        incarnation=st.just("i"),
        host=st.just("h"),
        port=st.just(1),
        host_id=st.sampled_from(["", "m"]),
        wal=st.sampled_from(["", "object:", "block:/w"]),
    ),
    st.builds(r.FenceNode, node_id=NODES, epoch=SMALL, term=st.integers(-1, 3)),
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
    st.builds(r.DrainNode, node_id=NODES, epoch=SMALL, is_draining=st.booleans()),
    st.builds(
        r.AssignStreams,
        node_id=NODES,
        stream_ids=st.lists(STREAMS, max_size=3).map(tuple),
        is_preferred=st.booleans(),
        term=st.integers(-1, 3),
    ),
    st.builds(r.RetireNode, node_id=NODES),
    st.builds(r.CreateTopic, name=st.sampled_from(["t", "u", "a.b", "a_b"]), topic_id=TOPIC_IDS),
    st.builds(r.DeleteTopic, topic_id=TOPIC_IDS),
    st.builds(r.TopicConfig, topic_id=TOPIC_IDS, configs=configs),
    st.builds(r.CreateStream, stream_id=STREAMS, topic_id=TOPIC_IDS, partition=SMALL),
    st.builds(r.OpenStream, stream_id=STREAMS, epoch=SMALL, node_id=NODES, node_epoch=SMALL),
    st.builds(r.CloseStream, stream_id=STREAMS, epoch=SMALL),
    st.builds(r.TrimStream, stream_id=STREAMS, start_offset=OFFSETS, drops_state=st.booleans()),
    st.builds(
        r.CommitObjects,
        node_id=NODES,
        node_epoch=SMALL,
        objects=st.lists(objects, min_size=1, max_size=2).map(tuple),
        wal_epoch=st.integers(-1, 3),
        wal_floor=SMALL,
        taker_id=st.integers(-1, 1),
        taker_epoch=SMALL,
        wal_position=st.integers(-1, 3),
    ),
    st.builds(
        r.ReplaceObjects,
        sources=st.lists(KEYS, min_size=1, max_size=3).map(tuple),
        objects=st.lists(objects, max_size=2).map(tuple),
    ),
    st.builds(r.DropObjects, keys=st.lists(KEYS, max_size=2).map(tuple)),
    st.builds(r.ProducerIdBlock, node_id=NODES, start=OFFSETS, count=SMALL),
    st.builds(r.ControllerLease, node_id=NODES, node_epoch=SMALL, term=SMALL),
    st.builds(
        r.TakeTable,
        topic_id=TOPIC_IDS,
        holder=st.sampled_from(["", "me", "you"]),
        term=SMALL,
        until_ms=st.integers(-1, 9),
    ),
    st.builds(
        r.RequestTable,
        topic_id=TOPIC_IDS,
        requester=st.sampled_from(["", "me", "you"]),
        until_ms=st.integers(-1, 9),
    ),
    st.builds(
        r.TableProgress,
        topic_id=TOPIC_IDS,
        term=SMALL,
        offsets=st.lists(st.integers(-1, 12), max_size=4).map(tuple),
        problem=st.sampled_from(["", "offset 1: no JSON"]),
    ),
)


def entry(*records: Record) -> Entry:
    return Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=0, records=records)


def start() -> MetadataImage:
    """A cluster with a topic of two partitions, open on node 0."""
    topic = "a" * 32
    return apply_entry(
        MetadataImage(),
        entry(
            r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1),
            r.CreateTopic(name="t", topic_id=topic),
            r.CreateStream(stream_id=0, topic_id=topic, partition=0),
            r.CreateStream(stream_id=1, topic_id=topic, partition=1),
            r.OpenStream(stream_id=0, epoch=0, node_id=0, node_epoch=0),
            r.OpenStream(stream_id=1, epoch=0, node_id=0, node_epoch=0),
        ),
    )


def check(state: MetadataImage) -> None:
    """Everything that must be true of any state."""
    referred: dict[str, set[int]] = {key: set() for key in state.objects}
    for stream in state.streams.values():
        position = None
        for extent in stream.extents:
            assert extent.start_offset < extent.end_offset
            assert position is None or extent.start_offset == position
            position = extent.end_offset
            assert extent.end_offset > stream.start_offset
            referred[extent.object_key].add(stream.stream_id)
        assert position is None or position == stream.end_offset
        check_state_sources(stream)
        for extent in stream.state_extents:
            referred[extent.object_key].add(stream.stream_id)
        assert stream.start_offset <= stream.end_offset
        assert state.topic_by_id(stream.topic_id) is not None
        assert list(stream.epochs) == sorted(stream.epochs)
    for key, streams in referred.items():
        assert state.objects[key].stream_ids == streams
        assert (state.objects[key].unreferenced_ms >= 0) == (not streams)
    for node in state.nodes.values():
        assert node.wal_epoch <= node.epoch + node.is_fenced
    for topic in state.topics.values():
        known = [(n, state.streams.get(s)) for n, s in enumerate(topic.partitions)]
        assert all(stream is None or stream.partition == n for n, stream in known)
    for topic_id, table in state.tables.items():
        known_topic = state.topic_by_id(topic_id)
        assert known_topic is not None
        assert table.term >= 0
        assert bool(table.requester) == bool(table.requested_until_ms)
        assert len(table.offsets) <= len(known_topic.partitions)
    unreferenced = {o.key: o.unreferenced_ms for o in state.objects.values() if not o.stream_ids}
    assert dict(state.unreferenced) == unreferenced
    same: dict[str, set[str]] = {}
    for name in state.topics:
        if "." in name or "_" in name:
            same.setdefault(name.replace(".", "_"), set()).add(name)
    assert dict(state.unified_names) == same
    assert len(state.objects) == len(list(state.objects))
    assert len(state.streams) == len(list(state.streams.values()))


def check_state_sources(stream: StreamState) -> None:
    """What a partition's state is made of is there without a gap, though trimmed."""
    sources = list(stream.state_sources)
    for before, after in itertools.pairwise(sources):
        assert before.end_offset == after.start_offset
    for extent in stream.state_extents:
        assert stream.state_from < extent.end_offset <= stream.start_offset
    if stream.state_from >= 0:
        assert sources[0].start_offset <= stream.state_from < stream.end_offset
        assert sources[-1].end_offset == stream.end_offset


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(record_values, min_size=1, max_size=2), max_size=40))
def test_any_records_leave_a_state_that_makes_sense(entries: list[list[Record]]) -> None:
    state, accepted = start(), []
    for records in entries:
        before, next_entry = state, entry(*records)
        try:
            state = apply_entry(state, next_entry)
        except EntryRejected:
            assert state == before
            continue
        accepted.append(next_entry)
        check(state)
    replayed = start()
    for known in accepted:
        replayed = apply_entry(replayed, decode_entry("k", encode_entry(known)))
    assert replayed == state


@given(st.lists(st.tuples(STREAMS.map(lambda n: n % 2), st.integers(1, 5)), max_size=30))
def test_commits_that_continue_are_accepted_and_a_repeated_one_is_not(
    commits: list[tuple[int, int]],
) -> None:
    state = start()
    for number, (stream_id, length) in enumerate(commits):
        begin = state.streams[stream_id].end_offset
        span = r.CommittedRange(
            stream_id=stream_id,
            epoch=0,
            start_offset=begin,
            end_offset=begin + length,
            max_timestamp=0,
            size=1,
        )
        committed = r.CommittedObject(
            key=f"data/{number}", kind="so", size=1, created_ms=0, ranges=(span,)
        )
        commit = entry(r.CommitObjects(node_id=0, node_epoch=0, objects=(committed,)))
        state = apply_entry(state, commit)
        check(state)
        try:
            apply_entry(state, commit)
        except EntryRejected:
            continue
        raise AssertionError("a repeated commit was accepted")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(record_values, max_size=60))
def test_records_mean_the_same_together_and_one_by_one(records: list[Record]) -> None:
    state, accepted = start(), []
    for record in records:
        try:
            state = apply_records(state, [record], 5)
        except EntryRejected:
            continue
        accepted.append(record)
    assert apply_records(start(), accepted, 5) == state
