"""Leases of declared tables, which give one process the right to write, in the cluster's metadata
log.

A lease has a term, one more than the last, and a time by the holder's clock. It is renewed in the
background while this process lives, and given back at its end. A taker waits until it has been
given back, its time is over, or its holder, a process of this machine, is gone. That two clocks
disagree costs no record: what a table holds is decided by its own log, by compare-and-set. The
lease spares work, and keeps engines apart that have no compare-and-set.

A taker that waits requests the lease, in the log as well. A process that follows tables hands a
requested lease over between two rounds, and until the requester has had it no other process takes
it. A request counts while its time lasts and its process lives, so a taker that is killed delays
the table for as long as a holder that is killed. A cluster below feature level 2 has no requests: a
taker waits there until the holder ends.

Progress is committed to the log at most every few seconds, in one entry with all renewals.
"""

import asyncio
import os
import random
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lakehead.lake.catalog import Catalog
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    FeatureNotEnabled,
    LakeheadError,
    StorageError,
    UnknownTopic,
)
from lakehead.storage.jobs.job import no_wait
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Record, RequestTable, TableProgress, TakeTable
from lakehead.storage.metadata.state import MetadataImage, TableState
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.holder import HostProcesses, is_running

LEASE_S = 30.0
_TICK_S = 3.0
_CLOCKS_APART_S = 5.0
_LOOK_AGAIN_S = 0.25
_PROBLEM_MAX = 1000
"""Maximum length of a problem in the log, in characters."""

OnWait = Callable[[str], None]
"""Called with the reason for which a lease is waited for, each time that it is another one."""


class TableTaken(LakeheadError):
    """Another process holds the lease of the table. The message names it, the end of its lease, and
    the next step.
    """


class LeaseLost(LakeheadError):
    """The lease's time was over before it could be renewed: the table may be another's now."""


@dataclass(slots=True)
class _Lease:
    topic: str
    first_term: int
    """With which this process took it."""
    term: int
    until: float
    """Monotonic seconds."""
    offsets: tuple[int, ...]
    problem: str
    reported: tuple[tuple[int, ...], str]
    """Offsets and problem, as the log has them."""


class TableLeases:
    """See the module's docstring. For blocking callers; `keep`, `kept`, `hand_over` and `catalog`
    for several threads.
    """

    def __init__(
        self, reader: StoreReader, log: MetadataLog, *, lease_s: float, on_wait: OnWait
    ) -> None:
        self._reader = reader
        self._log = log
        self._lease_s = lease_s
        self._on_wait = on_wait
        self._clock = SystemClock()
        process = HostProcesses().current().name
        nonce = secrets.token_hex(4)
        self._name = f"{socket.gethostname()}:{os.getpid()}/{nonce} {process}"
        self._held: dict[str, _Lease] = {}
        self._crashed: BaseException | None = None
        self._scope = TaskScope(self._on_crash)
        self._reporting = asyncio.Lock()
        self._taking = threading.Lock()
        self._uses = Counter[str]()
        """Threads that work on the files of a table, by topic id."""

    @classmethod
    def open(
        cls, path: str, *, lease_s: float = LEASE_S, on_wait: OnWait = no_wait
    ) -> "TableLeases":
        """Open a cluster's metadata log to hold leases in. Raises as `Catalog.open`."""
        reader = store_reader(path)
        reader.open_catalog()  # says what is wrong with a path

        async def begin() -> TableLeases:
            log = await MetadataLog.open(
                reader.store,
                writer_id=f"table-writer/{secrets.token_hex(8)}",
                clock=SystemClock(),
                rng=random.Random(),
            )
            leases = cls(reader, log, lease_s=lease_s, on_wait=on_wait)
            leases._scope.spawn(leases._keep(), name="table-leases")
            return leases

        return reader.run(begin())

    def catalog(self) -> Catalog:
        """Return the newest snapshot of the metadata; only what is new is read."""

        async def look() -> Catalog:
            return Catalog(await self._log.refresh(), self._reader.store.uri)

        return self._reader.run(look())

    def take(self, topic_id: str, *, wait_s: float = 0.0) -> None:
        """Take the table of a topic, within `wait_s`. Raises TableTaken, UnknownTopic."""
        self._reader.run(self._take(topic_id, wait_s))

    @contextmanager
    def held(self, topic_id: str, *, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the table of a topic while the block runs. Raises as `take`."""
        self.take(topic_id, wait_s=wait_s)
        try:
            yield
        finally:
            self.release(topic_id)

    def keep(self, topic_id: str) -> int:
        """Take the table of a topic unless it is ours already, and return the term with which it
        was taken: another one than before if the table may have been another's meanwhile. For
        several threads. Raises as `take`.
        """
        with self._taking:
            lease = self._held.get(topic_id)
            if lease is None or not self.holds(topic_id):
                return self._reader.run(self._take(topic_id, 0.0))
            return lease.first_term

    @contextmanager
    def kept(self, topic_id: str) -> Iterator[None]:
        """Keep the table of a topic, and do not hand it over while the block runs; it is ours still
        at the end. Raises as `take`, and TableTaken if another process has requested it.
        """
        with self._taking:
            if self.holds(topic_id) and self.is_requested(self._log.state, topic_id):
                raise TableTaken("another process has requested the table")
            if not self.holds(topic_id):
                self.take(topic_id)
            self._uses[topic_id] += 1
        try:
            yield
        finally:
            with self._taking:
                self._uses[topic_id] -= 1

    def is_requested(self, state: MetadataImage, topic_id: str) -> bool:
        """Return true if another process waits for a table, as these metadata say."""
        held = state.tables.get(topic_id)
        return held is not None and self._is_requested(held)

    def hand_over(self, state: MetadataImage) -> frozenset[str]:
        """Give back the leases that other processes have requested, but for tables that `kept`
        keeps, and return the ids of their topics.
        """
        with self._taking:
            requested = frozenset(
                one for one in self._held if self.is_requested(state, one) and not self._uses[one]
            )
            if requested:
                with suppress(StorageError):  # they end with their time, and are ours no more
                    self._reader.run(self._release(list(requested)))
            return requested

    def holds(self, topic_id: str) -> bool:
        """Return whether this process holds the lease of a topic's table now."""
        lease = self._held.get(topic_id)
        return lease is not None and lease.until > self._clock.monotonic()

    def check(self, topic_id: str) -> None:
        """Raise LeaseLost unless the table is ours still."""
        self.check_alive()
        if not self.holds(topic_id):
            lease = self._held.get(topic_id)
            raise LeaseLost(
                f"the lease of the table of topic {lease.topic if lease else topic_id} is over: "
                "another process may write it; run again"
            )

    def report(self, topic_id: str, offsets: Sequence[int]) -> None:
        """Set the offsets up to which the table holds each partition; they are logged soon."""
        if (lease := self._held.get(topic_id)) is not None:
            lease.offsets = tuple(offsets)

    def report_problem(self, topic_id: str, problem: str) -> None:
        """Set the reason why the turn at a table failed (empty: it did not); it is logged soon."""
        if (lease := self._held.get(topic_id)) is not None:
            lease.problem = problem[:_PROBLEM_MAX]

    def check_alive(self) -> None:
        """Raise what has ended the renewal of leases, if something has."""
        if self._crashed is not None:
            raise self._crashed

    def release(self, topic_id: str) -> None:
        """Give a lease back, if it is held."""
        self._reader.run(self._release([topic_id]))

    def close(self) -> None:
        """Give all leases back."""

        async def end() -> None:
            async with self._reporting:  # half a report is not known to be one
                await self._scope.close()
            await self._release(list(self._held))

        self._reader.run(end())

    # ------------------------------------------------------------------ on the reader's event loop

    async def _take(self, topic_id: str, wait_s: float) -> int:
        deadline = self._clock.monotonic() + wait_s
        waits_for = holder = lease = ""
        while True:
            begun = self._clock.monotonic()
            term = -1

            def plan(state: MetadataImage) -> Sequence[Record]:
                nonlocal term, holder, lease
                held = state.tables.get(topic_id, TableState())
                if not self._is_free(held) or self._is_requested(held):
                    holder, lease = _holder_of(state, topic_id, held, self._clock.now_ms())
                    advice = "wait for it with --wait SECONDS, or end that process"
                    raise TableTaken(f"{holder} ({lease}): {advice}")
                term = held.term + 1
                return [self._record(topic_id, term, self._until_ms())]

            try:
                state = await self._log.commit_with(plan)
            except TableTaken:
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    await self._withdraw(topic_id)
                    raise
                if holder != waits_for:
                    waits_for = holder
                    self._on_wait(f"{holder} ({lease}): waiting {left_s:.0f} s for it")
                await self._request(topic_id, left_s)
                await asyncio.sleep(_LOOK_AGAIN_S)
                await self._log.refresh()
                continue
            topic, taken = state.topic_by_id(topic_id), state.tables[topic_id]
            if topic is None:
                raise UnknownTopic(f"no topic with id {topic_id}")
            self._held[topic_id] = _Lease(
                topic=topic.name,
                first_term=term,
                term=term,
                until=begun + self._lease_s,
                offsets=taken.offsets,
                problem=taken.problem,
                reported=(taken.offsets, taken.problem),
            )
            return term

    async def _request(self, topic_id: str, left_s: float) -> None:
        """Have the holder know that this process waits for a lease; the first that does counts."""

        def plan(state: MetadataImage) -> Sequence[Record]:
            held = state.tables.get(topic_id, TableState())
            now_ms = self._clock.now_ms()
            is_fresh = (held.requested_until_ms - now_ms) / 1000 > min(left_s, self._lease_s) / 2
            if held.term < 0:  # the topic was deleted meanwhile
                return []
            if self._is_requested(held) or (held.requester == self._name and is_fresh):
                return []
            until_ms = now_ms + round(min(left_s, self._lease_s) * 1000)
            return [RequestTable(topic_id=topic_id, requester=self._name, until_ms=until_ms)]

        with suppress(FeatureNotEnabled):  # an older cluster: wait until the holder ends
            await self._log.commit_with(plan)

    async def _withdraw(self, topic_id: str) -> None:
        """End the request of this process, if there is one."""

        def plan(state: MetadataImage) -> Sequence[Record]:
            held = state.tables.get(topic_id, TableState())
            if held.requester != self._name:
                return []
            return [RequestTable(topic_id=topic_id, requester=self._name, until_ms=0)]

        with suppress(StorageError):  # it ends with its time
            await self._log.commit_with(plan)

    def _is_free(self, held: TableState) -> bool:
        if not held.until_ms:
            return True
        if self._clock.now_ms() > held.until_ms + _CLOCKS_APART_S * 1000:
            return True
        return _is_gone(held.holder)

    def _is_requested(self, held: TableState) -> bool:
        """Return true if another process, which lives as far as is known, waits for a lease."""
        if held.requester in ("", self._name) or self._clock.now_ms() > held.requested_until_ms:
            return False
        return not _is_gone(held.requester)

    def _until_ms(self) -> int:
        return self._clock.now_ms() + round(self._lease_s * 1000)

    def _record(self, topic_id: str, term: int, until_ms: int) -> TakeTable:
        return TakeTable(topic_id=topic_id, holder=self._name, term=term, until_ms=until_ms)

    async def _keep(self) -> None:
        """Renew leases in time, and commit progress."""
        tick_s = min(_TICK_S, self._lease_s / 6)
        while True:
            await asyncio.sleep(tick_s)
            try:
                async with self._reporting:
                    await self._report(dict(self._held), is_end=False)
            except StorageError:
                continue  # until the lease is over there is time to try again

    async def _release(self, topic_ids: Sequence[str]) -> None:
        async with self._reporting:
            leases = {one: self._held[one] for one in topic_ids if one in self._held}
            try:
                await self._report(leases, is_end=True)
            finally:
                for topic_id, lease in leases.items():
                    self._drop(topic_id, lease)

    def _drop(self, topic_id: str, lease: _Lease) -> None:
        """Hold a lease no more, but for a later one of the same table."""
        if self._held.get(topic_id) is lease:
            del self._held[topic_id]

    async def _report(self, leases: Mapping[str, _Lease], *, is_end: bool) -> None:
        """Commit what is new of these leases; those that are others' now are ours no more."""
        begun = self._clock.monotonic()
        news = {topic_id: (one.offsets, one.problem) for topic_id, one in leases.items()}
        renewed: set[str] = set()
        lost: set[str] = set()

        def plan(state: MetadataImage) -> Sequence[Record]:
            renewed.clear()
            lost.clear()
            records: list[Record] = []
            for topic_id, lease in leases.items():
                held = state.tables.get(topic_id)
                if held is None or (held.term, held.holder) != (lease.term, self._name):
                    lost.add(topic_id)
                    continue
                if news[topic_id] != lease.reported:
                    offsets, problem = news[topic_id]
                    records.append(
                        TableProgress(
                            topic_id=topic_id, term=lease.term, offsets=offsets, problem=problem
                        )
                    )
                if is_end or lease.until - begun < self._lease_s * 2 / 3:
                    until_ms = 0 if is_end else self._until_ms()
                    records.append(self._record(topic_id, lease.term + 1, until_ms))
                    renewed.add(topic_id)
            return records

        if not leases:
            return
        await self._log.commit_with(plan)
        for topic_id, lease in leases.items():
            if topic_id in lost:
                self._drop(topic_id, lease)
                continue
            lease.reported = news[topic_id]
            if topic_id in renewed:
                lease.term += 1
                lease.until = begun + self._lease_s

    def _on_crash(self, _name: str, error: BaseException) -> None:
        self._crashed = error


def _is_gone(process: str) -> bool:
    """Return true if the process of this name was one of this machine and has ended."""
    return is_running(process.rpartition(" ")[2]) is False


def _holder_of(
    state: MetadataImage, topic_id: str, held: TableState, now_ms: int
) -> tuple[str, str]:
    """Return in words which process has a table, or is to have it next, and for how long."""
    topic = state.topic_by_id(topic_id)
    is_held = held.until_ms > 0
    name, until_ms = (
        (held.holder, held.until_ms) if is_held else (held.requester, held.requested_until_ms)
    )
    lease = f"lease {held.term}, " if is_held else ""
    seconds = max(0, -(-(until_ms - now_ms) // 1000))
    use = "written" if is_held else "requested"
    table = f"the table of topic {topic.name if topic else topic_id}"
    return f"{table} is {use} by {name.partition('/')[0]}", f"{lease}{seconds} s left"
