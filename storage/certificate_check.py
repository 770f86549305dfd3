"""Look for records of forgotten keys in every object of a cluster, also in those that nothing
refers to any more.

Objects that streams refer to have to be free of them. Garbage, and objects that are not committed,
are *pending*: the nodes or a sweep delete them, and until then records can be read from the bucket.
Records above the ends of a request are counted apart: they were written after it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from lakehead.storage.certificates import ForgetRequest
from lakehead.storage.compaction import record_kernels as records
from lakehead.storage.compaction.batches import BatchRows, Scratch, stored_items
from lakehead.storage.compaction.forgetting import Keys, found_batches
from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.format.stream_object import ObjectIndex, read_index
from lakehead.storage.garbage import GRACE_MS, Verdict, judge, listed
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore

OFFSET_MAX = (1 << 62) - 1
_READ = frozenset(Verdict) - {Verdict.STRANGE, Verdict.TOMBSTONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecords:
    """Records of the keys in an object. With `until_ms` it is deleted at that time or later
    (milliseconds; -1: it is not known when), by `by`; without `by` it stays.
    """

    key: str
    partition: int
    first: int
    last: int
    records: int
    by: str = ""
    until_ms: int = -1


@dataclass(slots=True)
class ObjectsChecked:
    """The findings: objects and bytes that were read; records below the ends, and how many lie
    above; batches that cannot be read, in words.
    """

    objects: int = 0
    bytes: int = 0
    later: int = 0
    held: list[HeldRecords] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


async def check_objects(
    store: ObjectStore, metadata: MetadataLog, request: ForgetRequest, keys: Keys
) -> ObjectsChecked:
    """Read every object that has records of the request's partitions. Raises StoreUnavailable,
    CorruptObject, UnsupportedFormat.
    """
    found = await listed(store)
    state = await metadata.refresh(surely=True)
    result, scratch = ObjectsChecked(), Scratch()
    known = {one.stream_id for one in request.ranges}
    for item in found:
        verdict = judge(state, item.key, item.size)
        is_left = verdict is Verdict.REFERENCED and not _is_read(state, item.key, known)
        if verdict not in _READ:
            continue
        try:
            index = await read_index(store, item.key)
            if known & index.streams.keys():
                result.objects += 1
                held = await _held(store, index, request, keys, result, scratch)
                fate = _fate(state, item, verdict, is_left=is_left)
                result.held += [replace(one, by=fate[0], until_ms=fate[1]) for one in held]
        except ObjectNotFound:
            continue  # deleted meanwhile
        except CorruptObject:
            if verdict is Verdict.REFERENCED:
                raise
    return result


async def check_version(
    store: ObjectStore, key: str, request: ForgetRequest, keys: Keys
) -> ObjectsChecked:
    """Read an object of a store that has this one alone: an old version of it. Raises CorruptObject
    and UnsupportedFormat.
    """
    result = ObjectsChecked()
    index = await read_index(store, key)
    if any(one.stream_id in index.streams for one in request.ranges):
        result.objects = 1
        result.held += await _held(store, index, request, keys, result, Scratch())
    return result


def _is_read(state: MetadataImage, key: str, stream_ids: Collection[int]) -> bool:
    """Return true if readers of one of these streams find records in an object."""
    streams = (state.streams.get(stream_id) for stream_id in stream_ids)
    return any(stream is not None and stream.extents.among((key,)) for stream in streams)


def _fate(
    state: MetadataImage, item: ObjectMeta, verdict: Verdict, *, is_left: bool
) -> tuple[str, int]:
    """Return what deletes an object, and from when on; nothing of one that streams refer to."""
    if verdict is Verdict.UNREFERENCED:
        return "the nodes or lakehead sweep", state.unreferenced[item.key] + GRACE_MS
    if is_left and state.places_in((item.key,)):
        return "lakehead forget, run again with the keys (other partitions have records in it)", -1
    if is_left:
        return "the nodes, when the partitions that it has states of have newer ones", -1
    if verdict is Verdict.REFERENCED:
        return "", -1
    if verdict is Verdict.HELD:
        return "an operator that keeps metadata from before a rebuild", -1
    return f"the nodes or lakehead sweep (it is not committed: {verdict.value})", -1


async def _held(
    store: ObjectStore,
    index: ObjectIndex,
    request: ForgetRequest,
    keys: Keys,
    result: ObjectsChecked,
    scratch: Scratch,
) -> Sequence[HeldRecords]:
    held, batches = [], BatchRows()
    for one in request.ranges:
        if one.stream_id not in index.streams:
            continue
        offsets: list[int] = []
        everything = Extent(
            start_offset=-1,
            end_offset=OFFSET_MAX,
            object_key=index.key,
            max_timestamp=0,
            size=0,
        )
        async for item, data in stored_items(store, index, one.stream_id, everything, scratch):
            result.bytes += len(data)
            try:
                batches.read(one.stream_id, data)
            except ValueError as error:
                raise CorruptObject(index.key, item.position, str(error)) from error
            for found in found_batches(batches, keys, OFFSET_MAX):
                if found.rows is None:
                    if found.header.base_offset < one.end:
                        result.unreadable.append(
                            unreadable_words(request.topic, one.partition, found.header.base_offset)
                        )
                    continue
                hits = found.rows[found.hits, records.OFFSET]
                below = hits[hits < one.end].tolist()
                result.later += len(hits) - len(below)
                offsets += below
        if offsets:
            held.append(
                HeldRecords(
                    key=index.key,
                    partition=one.partition,
                    first=min(offsets),
                    last=max(offsets),
                    records=len(offsets),
                )
            )
    return held


def unreadable_words(topic: str, partition: int, offset: int) -> str:
    """Return the place of a batch that cannot be read, in words."""
    return f"topic {topic}, partition {partition}, offset {offset}: the batch cannot be read"
