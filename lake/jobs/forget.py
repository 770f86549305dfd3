"""The job `forget`: removes every record of some keys from a topic, its tables and dead letters.

1. A request is written, with the ends of the topic's partitions: records below are meant
   (`lakehead.storage.certificates`). Made again after a kill, the same command goes on with it.
2. Each object that has records of the keys below the ends is replaced by one without them
   (`lakehead.storage.compaction.forgetting`), until a look at all objects finds none. Records that
   were trimmed, compacted or merged into other objects stay in the old one as long as other
   partitions have records there. So the objects of several partitions are looked into as well, of
   all topics.
3. Rows of the keys are deleted from the table and the dead letters, under the table's lease, and
   digests of the changed offset ranges are noted there (`forget_tables`).
4. A certificate says what was done. Nodes and VACUUM delete the old objects and files later.

With `check` nothing is changed: every object and file is looked into, also what is to be deleted.
"""

import getpass
import random
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs.forget_options import WRITER, ForgetOptions, has_table
from lakehead.lake.jobs.forget_result import ForgetResult, refuse_held, shown
from lakehead.storage.errors import LakeheadError, RequestRefused, SettingsError
from lakehead.storage.jobs.job import (
    Job,
    JobContext,
    Planned,
    Totals,
    Unit,
    results_of,
)

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.certificates import Certificate, ForgetRequest
    from lakehead.storage.compaction.forgetting import RewrittenObject
    from lakehead.storage.errors import CorruptObject
    from lakehead.storage.format.stream_object import ObjectIndex
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.metadata.state import MetadataImage
    from lakehead.storage.object_store import ObjectStore

_ITEM_BYTES = 128 * 1024 * 1024
_ITEM_OBJECTS = 1000
_INDEX_BYTES = 64 * 1024
"""About as much is read of an object in which the topic's partitions read nothing: its index."""
_INDEXES_AT_ONCE = 16
_PASSES_MAX = 50
_POLL_S = 0.25
_OF_BROKERS = "__"
"""The beginning of the names of topics whose content coordinators have in memory."""


class NotUploaded(LakeheadError):
    """Records that are to be looked at are not in objects in time. Another try may find them."""


class TopicChanges(LakeheadError):
    """Objects were replaced each time before they were looked at. Another try may do the rest."""


# ------------------------------------------------------------------------------------------ objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetItem:
    """Objects that one process looks at, each with the bytes that this may read. `ends` are offsets
    by stream, `partitions` the numbers of partitions. Without a `certificate` nothing is changed.
    """

    path: str
    topic: str
    keys: tuple[bytes, ...]
    ends: Mapping[int, int]
    partitions: Mapping[int, int]
    objects: tuple[tuple[str, int], ...]
    certificate: int = -1

    @property
    def size(self) -> int:
        """Bytes that may be read."""
        return sum(size for _, size in self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsDone(Totals):
    """The result of an item. `free` objects have no record of the keys; or they are kept for the
    state of a partition's producers alone, and nodes delete them.
    """

    looks: int = 0
    records: int = 0
    batches: int = 0
    objects: int = 0
    bytes_read: int = 0
    bytes_rewritten: int = 0
    free: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def forget_item(item: ForgetItem) -> ObjectsDone:
    """Look at objects, and replace those that have records of the keys. Raises what
    `ObjectRewrite.run` raises, but Superseded.
    """
    from lakehead.storage.jobs.cluster import in_cluster

    return in_cluster(item.path, WRITER, lambda store, log: _ItemWork(item, store, log).run())


class _ItemWork:
    def __init__(self, item: ForgetItem, store: "ObjectStore", log: "MetadataLog") -> None:
        from lakehead.storage.certificates import Certificates
        from lakehead.storage.clock import SystemClock
        from lakehead.storage.compaction.forgetting import GivenKeys

        self._item = item
        self._store = store
        self._log = log
        self._clock = SystemClock()
        self._rng = random.SystemRandom()
        self._keys = GivenKeys(item.keys, self._rng)
        self._certificates = Certificates(store, self._rng)

    async def run(self) -> ObjectsDone:
        done, objects = ObjectsDone(), self._item.objects
        for first in range(0, len(objects), _INDEXES_AT_ONCE):
            some = [key for key, _ in objects[first : first + _INDEXES_AT_ONCE]]
            indexes: list[ObjectIndex] = []
            done = done.plus(await self._read_indexes(some, indexes))
            for index in indexes:
                done = done.plus(await self._look(index))
        return done

    async def _read_indexes(
        self, keys: Collection[str], indexes: "list[ObjectIndex]"
    ) -> ObjectsDone:
        """Read the indexes of those objects that are there."""
        from lakehead.storage.errors import CorruptObject, ObjectNotFound
        from lakehead.storage.format.stream_object import read_index
        from lakehead.storage.tasks import for_each

        others: list[ObjectsDone] = []

        async def read(key: str) -> None:
            try:
                indexes.append(await read_index(self._store, key))
            except ObjectNotFound:
                others.append(await self._missing(key))
            except CorruptObject as error:
                others.append(self._damaged(error))

        await for_each(keys, read, at_once=_INDEXES_AT_ONCE)
        return reduce(ObjectsDone.plus, others, ObjectsDone(looks=len(keys)))

    def _damaged(self, error: "CorruptObject") -> ObjectsDone:
        """Return what is known of a damaged object that other topics read: it may have records of
        the keys. Raises the error where the topic's own partitions read it.
        """
        if self._is_read(error.key):
            raise error
        return ObjectsDone(free=(error.key,), unreadable=(str(error),))

    async def _look(self, index: "ObjectIndex") -> ObjectsDone:
        from lakehead.storage.compaction.forgetting import Superseded, find_in_object
        from lakehead.storage.errors import CorruptObject, ObjectNotFound

        key = index.key
        try:
            found = await find_in_object(self._store, index, self._keys, self._item.ends)
            read = ObjectsDone(bytes_read=found.bytes_read)
            if not found.records:
                words = tuple(self._unreadable(found.unreadable))
                return read.plus(ObjectsDone(free=(key,), unreadable=words))
            if not self._is_in_extents(key):
                return read.plus(ObjectsDone(free=(key,)))
            is_copy = not self._is_read(key)
            if self._item.certificate >= 0:
                await self._rewrite(key)
        except Superseded:
            return ObjectsDone()  # the next look finds what has its records now
        except ObjectNotFound:
            return await self._missing(key)
        except CorruptObject as error:
            return self._damaged(error)
        counted = ObjectsDone(objects=1, bytes_rewritten=index.size)
        if not is_copy:
            counted = counted.plus(ObjectsDone(records=found.records, batches=found.batches))
        return read.plus(counted)

    async def _missing(self, key: str) -> ObjectsDone:
        """Return what is known of an object that is missing: replaced meanwhile, or lost to other
        topics, and free of the keys so. Raises ObjectNotFound where the topic's own partitions read
        it.
        """
        from lakehead.storage.errors import ObjectNotFound

        state = await self._log.refresh(surely=True)
        if key not in state.objects or key in state.unreferenced:
            return ObjectsDone()
        if self._is_read(key):
            raise ObjectNotFound(key)
        return ObjectsDone(free=(key,))

    def _is_in_extents(self, key: str) -> bool:
        """Return false for an object that streams need for the states of their producers alone."""
        known = self._log.state.objects.get(key)
        if known is None or not known.stream_ids:
            return True  # not any more: the rewriting notices that
        return bool(self._log.state.places_in((key,)))

    def _is_read(self, key: str) -> bool:
        """Return true if the topic's own partitions have records in an object."""
        streams = (self._log.state.streams.get(one) for one in self._item.ends)
        return any(one is not None and one.extents.among((key,)) for one in streams)

    def _unreadable(self, places: Mapping[int, Sequence[tuple[int, int]]]) -> list[str]:
        from lakehead.storage.certificate_check import unreadable_words

        item = self._item
        return [
            unreadable_words(item.topic, item.partitions[stream_id], first)
            for stream_id, spans in places.items()
            for first, _ in spans
        ]

    async def _rewrite(self, key: str) -> None:
        from lakehead.storage.compaction.forgetting import ObjectRewrite, Superseded

        noted: list[str] = []
        rewrite = ObjectRewrite(
            store=self._store,
            metadata=self._log,
            clock=self._clock,
            rng=self._rng,
            key=key,
            keys=self._keys,
            ends=self._item.ends,
            certificate=self._item.certificate,
        )
        try:
            await rewrite.run(partial(self._note, noted))
        except Superseded:
            for name in noted:
                await self._certificates.withdraw_step(name)
            raise

    async def _note(self, noted: list[str], made: "RewrittenObject") -> None:
        from lakehead.storage.certificates import ForgetStep

        partitions = self._item.partitions
        step = ForgetStep(
            before=made.before,
            after=made.after,
            records=made.findings.records,
            batches={
                str(partitions[stream_id]): spans
                for stream_id, spans in made.findings.offsets.items()
            },
            entry=self._log.state.next_entry,
        )
        noted.append(await self._certificates.note_step(self._item.certificate, step))


def _items(
    path: str, request: "ForgetRequest", keys: tuple[bytes, ...], free: set[str]
) -> list[ForgetItem]:
    """Return the objects that are not known to be free of the keys, in items."""
    from lakehead.storage.jobs.cluster import in_cluster

    async def look(_: "ObjectStore", log: "MetadataLog") -> list[tuple[str, int]]:
        return _objects(log.state, request, free)

    groups: list[list[tuple[str, int]]] = []
    size = 0
    for one in in_cluster(path, WRITER, look):
        if not groups or size + one[1] > _ITEM_BYTES or len(groups[-1]) == _ITEM_OBJECTS:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one[1]
    return [
        ForgetItem(
            path=path,
            topic=request.topic,
            keys=keys,
            ends={one.stream_id: one.end for one in request.ranges},
            partitions={one.stream_id: one.partition for one in request.ranges},
            objects=tuple(group),
            certificate=request.number,
        )
        for group in groups
    ]


def _objects(
    state: "MetadataImage", request: "ForgetRequest", free: set[str]
) -> list[tuple[str, int]]:
    """Return the objects that may have records of a request's ranges, with the bytes that a look
    may read: those that its partitions read, and those of several partitions, which may have copies
    that none reads any more.
    """
    from lakehead.storage.metadata.records import COMPACTED, HEADERS, TAIL

    found: dict[str, int] = {}
    for one in request.ranges:
        stream = state.streams.get(one.stream_id)
        for extent in () if stream is None else stream.extents:
            if extent.start_offset < one.end and extent.object_key not in free:
                found[extent.object_key] = state.objects[extent.object_key].size
    for key, known in state.objects.items():
        is_shared = known.kind not in {"so", COMPACTED, HEADERS, TAIL} and known.stream_ids
        if is_shared and key not in free:
            found.setdefault(key, min(known.size, _INDEX_BYTES))
    return list(found.items())


# -------------------------------------------------------------------------------------------- a run


def _begun(
    context: JobContext, options: ForgetOptions, keys: tuple[bytes, ...]
) -> "tuple[ForgetRequest, str]":
    """Return the request, an unfinished one about the same keys or a new one, and the digest of the
    keys. In a dry run the request is not written, and has no number.

    Raises SettingsError, UnknownTopic, RequestRefused, NotUploaded.
    """
    from lakehead.storage.certificates import Certificates, keys_digest
    from lakehead.storage.jobs.cluster import in_cluster

    topic_name = options.checked_topic()
    if topic_name.startswith(_OF_BROKERS):
        raise RequestRefused(
            f"topic {topic_name} is the brokers' own: coordinators have its records in memory, and "
            "remove what has no use by themselves"
        )

    async def begin(store: "ObjectStore", log: "MetadataLog") -> "tuple[ForgetRequest, str]":
        digest = keys_digest(log.state.node_secret, keys)
        if options.approved_keys and options.approved_keys != digest:
            raise RequestRefused(
                f"the keys are not those that were approved: their digest is {digest}, and that "
                f"of the approved ones {options.approved_keys}; nothing was changed"
            )
        certificates = Certificates(store, random.SystemRandom())
        topic = log.state.topics.get(topic_name)
        if topic is None:
            from lakehead.storage.errors import UnknownTopic

            raise UnknownTopic(f"topic {topic_name!r} does not exist in {store.uri}")
        if not context.is_dry_run:
            known = await certificates.unfinished(topic.topic_id, keys)
            if known is not None:
                return known, digest
        request = await _request(log, options, topic_name)
        if not context.is_dry_run:
            request = await certificates.begin(request, keys)
        return request, digest

    return in_cluster(context.path, WRITER, begin)


async def _request(log: "MetadataLog", options: ForgetOptions, topic: str) -> "ForgetRequest":
    import asyncio

    from lakehead.storage.certificates import FORMAT_VERSION, ForgetRequest, ForgottenRange
    from lakehead.storage.clock import SystemClock

    clock = SystemClock()
    deadline = clock.monotonic() + options.upload_wait_s
    until = options.ends()
    while True:
        state = log.state
        streams = [state.stream(one) for one in state.topics[topic].partitions]
        if odd := sorted(until.keys() - set(range(len(streams)))):
            raise SettingsError(f"topic {topic} has no partition {odd[0]} (--until)")
        missing = [
            f"partition {number}: {state.uploaded_end(stream)} of {offset}"
            for number, stream in enumerate(streams)
            for offset in (until.get(number, stream.end_offset),)
            if state.uploaded_end(stream) < offset
        ]
        if not missing:
            break
        if clock.monotonic() >= deadline:
            raise NotUploaded(
                f"topic {topic}: records are not in objects after {options.upload_wait_s} s "
                f"({missing[0]}): nodes upload them after upload.age.ms; run it again"
            )
        await asyncio.sleep(_POLL_S)
        await log.refresh(surely=True)
    return ForgetRequest(
        version=FORMAT_VERSION,
        number=-1,
        cluster_id=state.cluster_id,
        topic=topic,
        topic_id=state.topics[topic].topic_id,
        requested_by=options.requested_by or f"{getpass.getuser()}@{socket.gethostname()}",
        requested_ms=clock.now_ms(),
        salt="",
        hashes=(),
        ranges=tuple(
            ForgottenRange(
                partition=number,
                stream_id=stream.stream_id,
                start=stream.start_offset,
                end=until.get(number, stream.end_offset),
            )
            for number, stream in enumerate(streams)
        ),
    )


def _ranges(request: "ForgetRequest") -> tuple[str, ...]:
    return tuple(
        f"partition {one.partition}: offsets {one.start} to {one.end - 1}"
        for one in request.ranges
        if one.start < one.end
    )


def _looked(context: JobContext, request: "ForgetRequest", keys: tuple[bytes, ...]) -> ObjectsDone:
    """Look at all objects once, and change nothing."""
    items = _items(context.path, request, keys, set())
    done = ObjectsDone()
    for one in results_of(context, forget_item, items, size=lambda item: item.size):
        done = done.plus(one)
    return done


def _rewritten(
    context: JobContext, request: "ForgetRequest", keys: tuple[bytes, ...]
) -> ObjectsDone:
    """Replace objects until a look at all of them has found none with records of the keys. Those
    that come later have none either: nodes upload records above the ends, and jobs copy from what
    was looked at. They are not waited for: on a busy cluster some come all the time.
    """
    free: set[str] = set()
    done = ObjectsDone()
    for _ in range(_PASSES_MAX):
        items = _items(context.path, request, keys, free)
        for one in results_of(context, forget_item, items, size=lambda item: item.size):
            free |= set(one.free)
            done = done.plus(replace(one, free=()))
        if all(key in free for item in items for key, _ in item.objects):
            return done
    raise TopicChanges(
        f"the objects of topic {request.topic} were replaced {_PASSES_MAX} times while they were "
        "looked at: run it again"
    )


_GET, _PUT = 0.0004 / 1000, 0.005 / 1000
"""Dollars of a request to S3 standard, November 2026."""


def _cost(done: ObjectsDone) -> tuple[int, str]:
    """Return about how many requests objects take, and what they cost."""
    gets = 2 + done.looks + 2 * done.bytes_read // (8 * 1024 * 1024) + done.objects
    puts = 3 * done.objects + 4
    return gets + puts, f"{gets * _GET + puts * _PUT:.6f} dollars"


def _plan(context: JobContext, options: ForgetOptions) -> Planned:
    """One unit; in a dry run with what would be done."""
    topic = options.checked_topic()
    if options.old_versions and options.check is None:
        raise SettingsError(
            "--old-versions needs --check N: a bucket keeps versions of what was deleted, and that "
            "is after the certificate"
        )
    unit = Unit(key=topic, size=0, item=topic, words=topic)
    if has_table(context.path, topic):  # a missing package is found before anything is changed
        import lakehead.lake.jobs.forget_tables  # noqa: F401
    if not context.is_dry_run or context.is_part or options.check is not None:
        return Planned(units=(unit,))
    keys = options.key_bytes()
    request, digest = _begun(context, options, keys)
    done = _looked(context, request, keys)
    requests, dollars = _cost(done)
    found = ForgetResult(
        keys_digest=digest,
        records=done.records,
        batches=done.batches,
        objects=done.objects,
        bytes_read=done.bytes_read,
        bytes_rewritten=done.bytes_rewritten,
        requests=requests,
        dollars=dollars,
        unreadable=done.unreadable,
        ranges=_ranges(request),
    )
    if has_table(context.path, topic):
        from lakehead.lake.jobs.forget_tables import rows_of_keys

        found = found.plus(rows_of_keys(context, request, keys))
    planned = replace(unit, size=found.bytes_rewritten)
    return Planned(units=(planned,), fields=found.as_fields(), found=found)


def _run(context: JobContext, options: ForgetOptions, units: Sequence[Unit]) -> ForgetResult:
    del units  # there is one
    if options.check is not None:
        from lakehead.lake.jobs.forget_check import checked

        return checked(context, options)
    keys = options.key_bytes()
    request, digest = _begun(context, options, keys)
    context.log.info("request %d to forget %d keys", request.number, len(keys))
    done = _rewritten(context, request, keys)
    rows: tuple[Any, ...] = ()
    if has_table(context.path, request.topic):
        from lakehead.lake.jobs.forget_tables import forget_rows

        rows = forget_rows(context, request, keys)
    certificate = _certified(context, request, done, rows)
    from lakehead.storage.failpoints import failpoint

    failpoint("forget_certified")
    return ForgetResult(
        certificate=str(request.number),
        keys_digest=digest,
        verdict=_verdict(certificate),
        records=done.records,
        batches=done.batches,
        objects=done.objects,
        rows=sum(one.rows for one in rows),
        tables=sum(one.rows > 0 for one in rows),
        bytes_read=done.bytes_read,
        bytes_rewritten=done.bytes_rewritten,
        unreadable=certificate.unreadable,
        ranges=_ranges(request),
    )


def _verdict(certificate: "Certificate") -> str:
    number = certificate.request.number
    if certificate.unreadable:
        return (
            f"certificate {number} is not complete: {len(certificate.unreadable)} batches cannot "
            "be read, and may have records of the keys"
        )
    return (
        f"certificate {number}: no reader finds a record of the keys any more; old objects and "
        f"files are deleted later: lakehead forget {certificate.request.topic} --check {number}"
    )


def _certified(
    context: JobContext, request: "ForgetRequest", done: ObjectsDone, rows: tuple[Any, ...]
) -> "Certificate":
    from lakehead.storage.certificates import Certificate, Certificates
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.jobs.cluster import in_cluster

    async def certify(store: "ObjectStore", log: "MetadataLog") -> Certificate:
        state = log.state
        certificates = Certificates(store, random.SystemRandom())
        steps = await certificates.steps(request.number, state.objects.__contains__)
        made = Certificate(
            request=request,
            finished_by=context.written_by or log.writer_id,
            finished_ms=SystemClock().now_ms(),
            records=sum(step.records for step in steps),
            objects=tuple(steps),
            tables=rows,
            unreadable=done.unreadable,
        )
        return await certificates.certify(made.signed(state.node_secret))

    certificate = in_cluster(context.path, WRITER, certify)
    context.log.info(
        "certificate %d of topic %s, requested by %s: %d records of %d keys, SHA-256 %s",
        request.number,
        request.topic,
        request.requested_by,
        certificate.records,
        len(request.hashes),
        certificate.sha256,
    )
    return certificate


def _confirmation(options: ForgetOptions) -> str:
    if options.check is None:
        return f"Remove every record of the keys from topic {options.topic} and its tables?"
    if options.old_versions:
        return (
            f"Delete the old versions that have records of the keys of certificate {options.check}?"
        )
    return ""


JOB = Job(
    name="forget",
    help="""Remove every record of a key, and leave a certificate.

    From a topic, its tables and dead letters.

    Offsets of other records stay. Records that are not in objects yet, and those that come later,
    are not meant: see --until. Safe to kill at any moment: run again, the command goes on. Old
    objects and files are deleted after their grace period, and --check says when all are gone.
    """,
    dry_run_help="Show what would be removed, and remove nothing.",
    options=ForgetOptions,
    plan=_plan,
    run=_run,
    finish=refuse_held,
    show=shown,
    confirmation=_confirmation,
    takes_processes=True,
    takes_lease=True,
    task_bytes=0,
)
