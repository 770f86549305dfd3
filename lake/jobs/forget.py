"""The job `forget`: removes every record of some keys from a topic, its tables and dead letters.

1. A request is written, with the ends of the topic's partitions: records below are meant
   (`lakehead.storage.certificates`). Made again after a kill, the same command goes on with it.
2. Each object below the ends that has records of the keys is replaced by one without them
   (`lakehead.storage.compaction.forgetting`), until a look at all objects finds none.
3. Rows of the keys are deleted from the table and the dead letters, under the table's lease, and
   digests of the changed offset ranges are noted there (`forget_tables`).
4. A certificate says what was done. Nodes and VACUUM delete the old objects and files later.

With `check` nothing is changed: every object and file is looked into, also what is to be deleted.
"""

import getpass
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs.table_jobs import TopicOptions
from lakehead.storage.errors import LakeheadError, RequestRefused, SettingsError
from lakehead.storage.jobs.job import (
    LINES_MAX,
    DamageFound,
    Fields,
    Job,
    JobContext,
    JobResult,
    Planned,
    Report,
    Table,
    Totals,
    Unit,
    results_of,
    text,
    total,
)
from lakehead.storage.jobs.options import names, option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.certificates import Certificate, ForgetRequest
    from lakehead.storage.compaction.forgetting import RewrittenObject
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.metadata.state import MetadataImage, TopicState
    from lakehead.storage.object_store import ObjectStore

_WRITER = "forget"
_ITEM_BYTES = 128 * 1024 * 1024
_ITEM_OBJECTS = 1000
_PASSES_MAX = 50
_POLL_S = 0.25
_OF_BROKERS = "__"
"""The beginning of the names of topics whose content coordinators have in memory."""
_KEYS_WORDS = (
    "A key: text, hex:6b31, or @FILE with one a line (@-: standard input). May be repeated. Of a "
    "key in a file no shell history and no list of processes has a trace."
)


class NotUploaded(LakeheadError):
    """Records that are to be looked at are not in objects in time. Another try may find them."""


class TopicChanges(LakeheadError):
    """Objects were replaced each time before they were looked at. Another try may do the rest."""


# ----------------------------------------------------------------------------------------- options


def _lines(value: Any) -> tuple[str, ...]:
    """Return keys that were given as a list, as JSON, or as a text with one a line."""
    if not isinstance(value, str):
        return tuple(str(one) for one in value)
    if value.startswith("["):
        import json

        return tuple(str(one) for one in json.loads(value))
    return tuple(line for line in value.splitlines() if line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions(TopicOptions):
    """The topic, and the keys; or a certificate to check."""

    topic: str = option(
        "",
        "The topic.",
        title="Topic",
        metavar="TOPIC",
        is_argument=True,
        form={"required": True, "minLength": 1},
    )
    keys: tuple[str, ...] = option(
        (),
        _KEYS_WORDS,
        title="Keys",
        flag="--key",
        metavar="KEY",
        form={"description": "One a line: text, hex:6b31, or @FILE on the worker's machine."},
        parse=_lines,
    )
    check: int | None = option(
        None,
        "Change nothing: look for records of the keys of this certificate in every object and "
        "file. Status 1 if there are any.",
        flag="--check",
        metavar="N",
        least=1,
        in_form=False,
    )
    until: str = option(
        "",
        "Wait until objects have these offsets of partitions, as 0:1200,1:3400, and forget what "
        "is below. Without: what is in objects now.",
        title="Until",
        flag="--until",
        metavar="OFFSETS",
    )
    upload_wait_s: int = option(
        120,
        "Seconds to wait for the offsets of --until.",
        flag="--upload-wait",
        metavar="SECONDS",
        least=0,
        in_form=False,
    )
    requested_by: str = option(
        "",
        "Name in the certificate. Without: user and machine.",
        title="Requested by",
        flag="--requested-by",
        metavar="NAME",
    )

    def ends(self) -> dict[int, int]:
        """Return the offsets to wait for, by partition. Raises SettingsError."""
        try:
            pairs = [one.split(":") for one in names(self.until)]
            return {int(partition): int(offset) for partition, offset in pairs}
        except ValueError:
            raise SettingsError(
                f"until is {self.until!r}: give offsets of partitions as 0:1200,1:3400"
            ) from None

    def key_bytes(self) -> tuple[bytes, ...]:
        """Return the keys. Raises SettingsError for a file that cannot be read, and for no key."""
        found = dict.fromkeys(key for given in self.keys for key in _keys_of(given))
        if not found:
            raise SettingsError("option keys is missing: name a key with --key")
        return tuple(sorted(found))


def _keys_of(given: str) -> list[bytes]:
    if given.startswith("@"):
        try:
            name = given[1:]
            body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            raise SettingsError(f"cannot read {given[1:]}: {error.strerror}") from None
        lines = body.decode("utf-8", "surrogateescape").splitlines()
        return [_key_of(line) for line in lines if line]
    return [_key_of(given)]


def _key_of(given: str) -> bytes:
    if not given.startswith("hex:"):
        return given.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(given.removeprefix("hex:"))
    except ValueError:
        raise SettingsError(f"{given!r} is not a key in hexadecimal digits: hex:6b31") from None


# ----------------------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(JobResult):
    """The result of a run, or of a dry run what would be done; of a check what was found. Bytes are
    of objects and files. `held` are places with records that stay, `pending` those that are deleted
    later, both in words.
    """

    verdict: str = text("verdict")
    certificate: str = text("certificate")
    records: int = total("records")
    batches: int = total("batches")
    objects: int = total("objects with such records")
    rows: int = total("rows and dead letters")
    tables: int = total("tables with such rows")
    bytes_read: int = total("bytes read")
    bytes_rewritten: int = total("bytes of objects and files to rewrite")
    requests: int = total()
    dollars: str = text("cost of requests")
    later: int = total("records above the ends, which stay")
    unreadable: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()

    def as_fields(self) -> Fields:
        """Return the result as XCom has it, with the first lines of each list."""
        lists = {"failures", "unreadable", "held", "pending", "ranges"}
        found: Fields = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in lists
        }
        for name in sorted(lists - {"failures"}):
            found[name] = list(getattr(self, name)[:LINES_MAX])
            found[f"{name}_count"] = len(getattr(self, name))
        return found


def _show(result: ForgetResult) -> Report:
    lists = ("ranges", "held", "pending", "unreadable")
    return Report(
        fields={**result.labelled()},
        tables=tuple(
            Table(
                name=name,
                columns={"what": name.upper()},
                rows=[{"what": one} for one in getattr(result, name)],
            )
            for name in lists
            if getattr(result, name)
        ),
    )


def _finish(found: Fields) -> None:
    if not found.get("verdict"):
        return  # of a dry run
    for name in ("held", "unreadable", "pending"):
        if found.get(name):
            raise DamageFound(f"{found['verdict']}: {found[name][0]}")


# ------------------------------------------------------------------------------------------ objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetItem:
    """Objects that one process looks at. `ends` are offsets by stream, `partitions` the numbers of
    partitions. Without a `certificate` nothing is changed.
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
        """Bytes of the objects."""
        return sum(size for _, size in self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsDone(Totals):
    """The result of an item. `free` objects have no record of the keys."""

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

    return in_cluster(item.path, _WRITER, lambda store, log: _ItemWork(item, store, log).run())


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
        from lakehead.storage.compaction.forgetting import Superseded, find_in_object
        from lakehead.storage.errors import ObjectNotFound
        from lakehead.storage.format.stream_object import read_index

        done = ObjectsDone()
        for key, size in self._item.objects:
            try:
                index = await read_index(self._store, key)
                found = await find_in_object(self._store, index, self._keys, self._item.ends)
                done = done.plus(ObjectsDone(bytes_read=found.bytes_read))
                if not found.records:
                    words = tuple(self._unreadable(found.unreadable))
                    done = done.plus(ObjectsDone(free=(key,), unreadable=words))
                    continue
                if self._item.certificate >= 0:
                    await self._rewrite(key)
                done = done.plus(
                    ObjectsDone(
                        records=found.records,
                        batches=found.batches,
                        objects=1,
                        bytes_rewritten=size,
                    )
                )
            except Superseded:
                continue  # the next look finds what has its records now
            except ObjectNotFound:
                await self._log.refresh(surely=True)
                if not self._is_old(key):
                    raise
        return done

    def _is_old(self, key: str) -> bool:
        """Return true if the streams do not refer to an object any more as they did."""
        streams = (self._log.state.streams.get(one) for one in self._item.ends)
        return not any(one is not None and one.extents.among((key,)) for one in streams)

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
    for one in in_cluster(path, _WRITER, look):
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
    found: dict[str, int] = {}
    for one in request.ranges:
        stream = state.streams.get(one.stream_id)
        for extent in () if stream is None else stream.extents:
            if extent.start_offset < one.end and extent.object_key not in free:
                found[extent.object_key] = state.objects[extent.object_key].size
    return list(found.items())


# -------------------------------------------------------------------------------------------- a run


def _begun(context: JobContext, options: ForgetOptions, keys: tuple[bytes, ...]) -> "ForgetRequest":
    """Return the request: an unfinished one about the same keys, or a new one. In a dry run it is
    not written, and has no number.

    Raises SettingsError, UnknownTopic, RequestRefused, NotUploaded.
    """
    from lakehead.storage.certificates import Certificates
    from lakehead.storage.jobs.cluster import in_cluster

    topic_name = options.checked_topic()
    if topic_name.startswith(_OF_BROKERS):
        raise RequestRefused(
            f"topic {topic_name} is the brokers' own: coordinators have its records in memory, and "
            "remove what has no use by themselves"
        )

    async def begin(store: "ObjectStore", log: "MetadataLog") -> "ForgetRequest":
        certificates = Certificates(store, random.SystemRandom())
        topic = log.state.topics.get(topic_name)
        if topic is None:
            from lakehead.storage.errors import UnknownTopic

            raise UnknownTopic(f"topic {topic_name!r} does not exist in {store.uri}")
        if not context.is_dry_run:
            known = await certificates.unfinished(topic.topic_id, keys)
            if known is not None:
                return known
        request = await _request(log, options, topic_name)
        return request if context.is_dry_run else await certificates.begin(request, keys)

    return in_cluster(context.path, _WRITER, begin)


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
            f"partition {number}: {streams[number].end_offset} of {offset}"
            for number, offset in sorted(until.items())
            if streams[number].end_offset < offset
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
    """Replace objects until a look at all of them has found none with records of the keys."""
    free: set[str] = set()
    done = ObjectsDone()
    for _ in range(_PASSES_MAX):
        items = _items(context.path, request, keys, free)
        if not items:
            return done
        for one in results_of(context, forget_item, items, size=lambda item: item.size):
            free |= set(one.free)
            done = done.plus(replace(one, free=()))
    raise TopicChanges(
        f"the objects of topic {request.topic} were replaced {_PASSES_MAX} times while they were "
        "looked at: run it again"
    )


_GET, _PUT = 0.0004 / 1000, 0.005 / 1000
"""Dollars of a request to S3 standard, November 2026."""


def _cost(done: ObjectsDone) -> tuple[int, str]:
    """Return about how many requests objects take, and what they cost."""
    gets = 2 + 2 * done.bytes_read // (8 * 1024 * 1024) + done.objects
    puts = 3 * done.objects + 4
    return gets + puts, f"{gets * _GET + puts * _PUT:.6f} dollars"


def _plan(context: JobContext, options: ForgetOptions) -> Planned:
    """One unit; in a dry run with what would be done."""
    topic = options.checked_topic()
    unit = Unit(key=topic, size=0, item=topic, words=topic)
    if not context.is_dry_run or context.is_part or options.check is not None:
        return Planned(units=(unit,))
    keys = options.key_bytes()
    request = _begun(context, options, keys)
    done = _looked(context, request, keys)
    requests, dollars = _cost(done)
    found = ForgetResult(
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


def may_have_table(topic: "TopicState") -> bool:
    """Return true if a topic declares a table, or declared one that is switched off."""
    from lakehead.lake.declaration.table_declaration import PREFIX

    return any(name.startswith(PREFIX) for name in topic.configs)


def has_table(path: str, topic: str) -> bool:
    """Return true if a topic may have a table, by its configs."""
    from lakehead.storage.jobs.cluster import in_cluster

    async def look(_: "ObjectStore", log: "MetadataLog") -> bool:
        known = log.state.topics.get(topic)
        return known is not None and may_have_table(known)

    return in_cluster(path, _WRITER, look)


def _run(context: JobContext, options: ForgetOptions, units: Sequence[Unit]) -> ForgetResult:
    del units  # there is one
    if options.check is not None:
        from lakehead.lake.jobs.forget_check import checked

        return checked(context, options)
    keys = options.key_bytes()
    request = _begun(context, options, keys)
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

    certificate = in_cluster(context.path, _WRITER, certify)
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


JOB = Job(
    name="forget",
    help="""Remove every record of a key from a topic, its tables and dead letters, and leave a
    certificate.

    Offsets of other records stay. Records that are not in objects yet, and those that come later,
    are not meant: see --until. Safe to kill at any moment: run again, the command goes on. Old
    objects and files are deleted after their grace period, and --check says when all are gone.
    """,
    dry_run_help="Show what would be removed, and remove nothing.",
    options=ForgetOptions,
    plan=_plan,
    run=_run,
    finish=_finish,
    show=_show,
    takes_processes=True,
    takes_lease=True,
    task_bytes=0,
)
