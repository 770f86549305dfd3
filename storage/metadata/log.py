"""The metadata log: numbered entries, each created with put-if-absent. The writer that creates
number N has decided N.

A commit plans records against the newest state known here, checks them by the rules, and tries to
create the next number: done when the store says so and the boundary stands where it stood; *lost*
when another's entry has the number (it is applied, and the plan is made again); *unknown* after a
timeout or a lost response (resolved by reading the number back and comparing writer and nonce, or,
when the log has moved on and the entry is gone, by what the state says of this writer's last
entry). Concurrent commits of one process are planned one after the other and travel in one entry.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from lakehead.storage.backoff import Backoff
from lakehead.storage.clock import Clock
from lakehead.storage.errors import CorruptObject, ObjectExists, ObjectNotFound, OutcomeUnknown
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.format.feature_level import METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata.additions import fitted, level_after
from lakehead.storage.metadata.boundaries import create_boundary, delete_boundaries_below
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.entry import encode_entry, entry_key
from lakehead.storage.metadata.layout import BOUNDARIES, META, Listing, checkpoint_key
from lakehead.storage.metadata.log_reader import LogReader, MetadataStats, in_steps
from lakehead.storage.metadata.records import (
    ClusterCreated,
    Entry,
    FeatureLevel,
    NodeSecret,
    Record,
)
from lakehead.storage.metadata.rules import apply_in_steps
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import task_group

_RETRY_S = 0.05
_RETRY_MAX_S = 5.0
_RECORDS_MAX = 2000
"""An entry takes no further plan once it has this many records."""

Steps = Generator[None, None, Sequence[Record]]
Plan = Callable[[MetadataImage], Sequence[Record] | Steps]


_Planned = tuple[Plan, asyncio.Future[MetadataImage]]


class _Proposal(NamedTuple):
    """An entry on its way to a number. Kept until its fate is known, even if the task that drove it
    is cancelled: a proposal that may have landed must not be planned a second time. Once nothing
    waits for it, it is given up, and another entry may be put at its number: one of both wins.
    """

    base: MetadataImage
    entry: Entry
    body: bytes
    planned: list[_Planned]
    after: MetadataImage
    """The state that the records make of the base, by the rules."""

    @property
    def is_given_up(self) -> bool:
        """Return true if the caller of each plan was cancelled."""
        return all(future.done() for _, future in self.planned)


class MetadataLog:
    """One process's view of the log: the newest known state, and the way to change it."""

    def __init__(
        self, store: ObjectStore, *, writer_id: str, clock: Clock, rng: random.Random
    ) -> None:
        self.store = store
        """The store in which it lies."""
        self.writer_id = writer_id
        """The `writer` of this process's entries."""
        self._clock = clock
        self._rng = rng
        self._reader = LogReader(store)
        self._cleaner = LogCleaner(store, self._reader, rng=rng)
        self._waiting: deque[_Planned] = deque()
        self._proposal: _Proposal | None = None
        self._lock = asyncio.Lock()
        self.fresh_at = float("-inf")
        """All that was committed by then (monotonic seconds) is in the state, for certain."""

    @property
    def state(self) -> MetadataImage:
        """The newest state known here."""
        return self._reader.state

    @property
    def stats(self) -> MetadataStats:
        """Counters."""
        return self._reader.stats

    @classmethod
    async def open(
        cls, store: ObjectStore, *, writer_id: str, clock: Clock, rng: random.Random
    ) -> "MetadataLog":
        """Start from the newest checkpoint and the entries after it.

        Raises UnsupportedFormat, CorruptObject, StoreUnavailable.
        """
        log = cls(store, writer_id=writer_id, clock=clock, rng=rng)
        await log._reader.load()
        await log.refresh()
        return log

    def subscribe(self, callback: Callable[[MetadataImage], None]) -> None:
        """Call `callback(state)` on the loop after each change of state."""
        self._reader.subscribers.append(lambda state, _: callback(state))

    def follow(self, callback: Callable[[MetadataImage, Entry | None], None]) -> None:
        """Call `callback(state, entry)` on the loop after each entry: a follower of many streams
        looks at those that it names. Without an entry the state was read from a checkpoint, and
        anything may have changed. A refused entry is reported too; it changed nothing.
        """
        self._reader.subscribers.append(callback)

    async def refresh(self, *, surely: bool = False, until: int = 0) -> MetadataImage:
        """Apply the entries that others have added, and return the newest state. `surely`: all that
        were there when this call began, even after a long sleep; costs one request more. `until`:
        those below this number, which is known to be there; no request is made beyond it.
        """
        async with self._lock:
            begun = self._clock.monotonic()
            if await self._reader.catch_up(surely=surely, until=until):
                self.fresh_at = begun
        return self.state

    async def maintain(self, every: int) -> None:
        """Write a checkpoint if `every` entries came since the last one, and delete what lies
        before the one before. Cheap when nothing is due. Raises StoreUnavailable,
        UnsupportedFormat.
        """
        await self._cleaner.maintain(every)

    async def create_cluster(
        self, cluster_id: str, founding: Sequence[Record] = ()
    ) -> MetadataImage:
        """Make the cluster, at the newest feature level, if the log is empty; with more records
        that `founding` has. Give a cluster
        without a node secret its secret (a rebuilt catalog has none). Returns the state, whether
        this or another node made it.
        """
        secret = NodeSecret(secret=f"{self._rng.getrandbits(256):064x}")

        def plan(state: MetadataImage) -> Sequence[Record]:
            if state.cluster_id:
                needs_secret = state.metadata_version >= NEWEST_LEVEL and not state.node_secret
                return (secret,) if needs_secret else ()
            return (
                ClusterCreated(cluster_id=cluster_id),
                FeatureLevel(name=METADATA_VERSION, level=NEWEST_LEVEL),
                secret,
                *founding,
            )

        return await self.commit_with(plan)

    async def commit(self, records: Sequence[Record]) -> MetadataImage:
        """Commit `records` as they are. Raises EntryRejected when the rules refuse them."""
        return await self.commit_with(lambda _: records)

    async def commit_with(self, plan: Plan) -> MetadataImage:
        """Commit the records that `plan(state)` returns. `plan` is called again if another writer's
        entry comes first.

        Atomic: all of a plan's records are in one entry. An empty plan commits nothing. Whatever
        `plan` raises reaches the caller, and nothing was committed then; so does FeatureNotEnabled,
        for what the feature level in force does not have. A plan that looks at much is a generator:
        others have a turn at each of its steps. The state returned is the newest known, perhaps
        with others' later entries: what the own entry said is what `plan` returned last, without
        the hints that are above the level (`lakehead.storage.metadata.additions`).
        """
        future: asyncio.Future[MetadataImage] = asyncio.get_running_loop().create_future()
        self._waiting.append((plan, future))
        try:
            async with self._lock:
                # Another task's turn may have carried this plan along.
                while not future.done():
                    await self._commit_group()
        except asyncio.CancelledError:
            future.cancel()
            with contextlib.suppress(ValueError):  # it is planned, or was
                self._waiting.remove((plan, future))
            raise
        return future.result()

    async def _commit_group(self) -> None:
        """Plan all that waits, put it as one entry, complete it; after a lost race leave it
        waiting.
        """
        if self._proposal is None or self._proposal.is_given_up:
            self._proposal = await self._propose()
        proposal = self._proposal
        try:
            won = not proposal.entry.records or await self._decide(proposal)
        except OutcomeUnknown as error:
            self._proposal = None
            for _, future in proposal.planned:
                if not future.done():
                    future.set_exception(error)
            return
        self._proposal = None
        if not won:
            self._waiting.extendleft(reversed(proposal.planned))
            return
        self.stats.commits += len(proposal.planned)
        for _, future in proposal.planned:
            if not future.done():
                future.set_result(self.state)

    async def _propose(self) -> "_Proposal":
        """Plan what waits. Others have a turn now and then: a topic may have many partitions."""
        base, time_ms = self.state, self._clock.now_ms()
        state = base
        records: list[Record] = []
        planned: list[_Planned] = []
        only: tuple[Entry, bytes] | None = None
        while self._waiting and len(records) < _RECORDS_MAX:
            plan, future = self._waiting.popleft()
            if future.done():
                continue
            try:
                steps = plan(state)
                made = await in_steps(steps) if isinstance(steps, Generator) else steps
                level = level_after(state.metadata_version, made)
                wanted = fitted(made, level)
                entry = self._entry(wanted, level, time_ms)
                body = encode_entry(entry)
                state = await in_steps(apply_in_steps(state, wanted, time_ms))
            except asyncio.CancelledError:  # of the caller that drives this; others still wait
                self._waiting.extendleft(reversed([*planned, (plan, future)]))
                raise
            except Exception as error:  # noqa: BLE001 - whatever a plan raises is for its caller
                if not future.done():  # its caller may have been cancelled meanwhile
                    future.set_exception(error)
                continue
            only = None if planned else (entry, body)
            records += wanted
            planned.append((plan, future))
        if only is None:
            entry = self._entry(tuple(records), state.metadata_version, time_ms)
            only = entry, encode_entry(entry)
        return _Proposal(base, *only, planned, state)

    def _entry(self, records: tuple[Record, ...], level: int, time_ms: int) -> Entry:
        return Entry(
            version=level,
            writer=self.writer_id,
            nonce=f"{self._rng.getrandbits(64):016x}",
            time_ms=time_ms,
            records=records,
        )

    async def _decide(self, proposal: "_Proposal") -> bool:
        """Have the proposal's number decided. False: another has it. Waits out a failing store.

        Raises OutcomeUnknown when the log has moved on so far that the outcome cannot be found out.
        """
        number, entry = proposal.base.next_entry, proposal.entry
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        while self._reader.state.next_entry <= number:
            failpoint("metadata_entry_planned")
            begun = self._clock.monotonic()
            try:
                await self.store.create(entry_key(number), [proposal.body])
            except ObjectExists:
                pass  # another's, or ours by an earlier try: reading it decides
            except OutcomeUnknown:
                # Its absence does not prove that it never will be there: only putting the same
                # entry again, under the same number, settles the owner of the number.
                self.stats.unknown_outcomes += 1
            else:
                failpoint("metadata_entry_put")
                self.stats.entries_put += 1
                if await self._reader.holds(number):
                    self.fresh_at = begun  # the number was free: nothing before it is unknown
                    is_base = self._reader.state is proposal.base
                    await self._reader.apply(entry, proposal.after if is_base else None)
                else:  # the name was free because its entry had been deleted: too late
                    await self._reader.load()
                break
            await self._reader.catch_up()
            if self._reader.state.next_entry <= number:
                await backoff.wait()
        state = self._reader.state
        if state.wrote(entry.writer, entry.nonce):
            return True
        if entry.writer not in state.writers and number <= state.forgotten_entry:
            raise OutcomeUnknown(f"the outcome of entry {number} is no longer in the log")
        self.stats.races_lost += 1
        return False


_log = event_logger("storage.metadata")

_DELETES_AT_ONCE = 1000


class LogCleaner:
    """Checkpoints the log and deletes closed entries, for one node.

    Any node may do it, several at once: every step is a put of a name that is fixed by its content
    or was never used, or a delete of what is closed for good. In this order: (1) write the
    checkpoint, by put-if-absent, and read it back; (2) create the boundary at the last good
    checkpoint before it, so two stay, and the entries between; (3) delete the older boundaries,
    until a listing shows none; (4) only then delete the entries and checkpoints below the boundary.

    A crash between any two leaves work for the next round. `log_reader` explains why step 3 comes
    before step 4.
    """

    def __init__(self, store: ObjectStore, reader: LogReader, *, rng: random.Random) -> None:
        self._store = store
        self._reader = reader
        self._rng = rng
        self._is_busy = False
        # Not all nodes at once: the first one does it, and the others see it in the listing.
        self._spread = 1 + rng.random() / 4

    async def maintain(self, every: int) -> None:
        """Do what is due when a checkpoint is wanted every so many entries. Raises
        StoreUnavailable, UnsupportedFormat.
        """
        if self._is_busy or not self._reader.state.cluster_id:
            return
        self._is_busy = True
        try:
            if self._reader.boundary is None:
                await self._first_boundary()
            elif self._reader.state.next_entry - self._reader.loaded >= every * self._spread:
                await self._round(every)
        finally:
            self._is_busy = False

    async def _first_boundary(self) -> None:
        """Create the boundary below which there is nothing: reading it is cheaper than listing."""
        if not Listing.of(await self._store.list(BOUNDARIES)).boundaries:
            await create_boundary(self._store, 0, self._rng)
        listing = Listing.of(await self._store.list(BOUNDARIES))
        if listing.boundary is not None and listing.boundary.number == 0:
            self._reader.boundary = listing.boundary

    async def _round(self, every: int) -> None:
        number, pieces = await self._fold()
        listing = Listing.of(await self._store.list(META))
        newest = listing.checkpoints[-1] if listing.checkpoints else 0
        # Only a node that has just read the newest checkpoint back deletes the entries below it.
        if number - newest >= every and await self._write(number, await in_steps(pieces)):
            await self._clean(Listing.of(await self._store.list(META)), number)

    async def _fold(self) -> tuple[int, Generator[None, None, list[bytes]]]:
        """Put the state on columns of its own time; return its number and how to encode it."""
        state = self._reader.state
        self._reader.remember()
        found = await in_steps(tables_of(state))
        await self._reader.rebase(await in_steps(state_of("this state", found)))
        return found.number, checkpoint_file.encode(found)

    async def _write(self, number: int, pieces: list[bytes]) -> bool:
        """Write a checkpoint and read it back; return whether it is good."""
        try:
            await self._store.create(checkpoint_key(number), pieces)
            failpoint("checkpoint_put")
        except ObjectExists:
            pass  # another node's: of the same entries, so of the same state
        except OutcomeUnknown:
            return False  # if it is there, the next round finds it
        if not await self._is_good(number):
            return False  # it stays for an inspection; nothing below it is deleted
        stats = self._reader.stats
        stats.checkpoints_written += 1
        stats.checkpoint_bytes = sum(map(len, pieces))
        _log.info("checkpoint_written", number=number, size=stats.checkpoint_bytes)
        return True

    async def _is_good(self, number: int) -> bool:
        """Return true if a checkpoint is there and every byte of it is right."""
        try:
            key = checkpoint_key(number)
            await in_steps(checkpoint_file.decode(key, await self._store.get(key)))
        except ObjectNotFound:
            return False
        except CorruptObject as error:
            self._reader.stats.corrupt_checkpoints += 1
            _log.error("checkpoint_corrupt", error=str(error))
            return False
        return True

    async def _clean(self, listing: Listing, number: int) -> None:
        """Move the boundary to the last good checkpoint before `number`, a good one, and delete
        what lies below: two that can be read stay.
        """
        boundary = listing.boundary.number if listing.boundary else 0
        for older in reversed(listing.checkpoints):
            if boundary < older < number and await self._is_good(older):
                boundary = older
                await create_boundary(self._store, boundary, self._rng)
                failpoint("boundary_put")
                break
        deleted = await delete_boundaries_below(self._store, boundary) if boundary else None
        if deleted is None:
            return
        self._reader.stats.objects_deleted += deleted
        failpoint("boundaries_deleted")
        keys = [checkpoint_key(number) for number in listing.checkpoints if number < boundary]
        keys += [entry_key(number) for number in listing.entries if number < boundary]
        await self._delete(keys)

    async def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            await self._store.delete(keys[start : start + _DELETES_AT_ONCE])
        self._reader.stats.objects_deleted += len(keys)


_SLOWER = 1.5


class MetadataFollower:
    """Polls and maintains a log; times in seconds, a checkpoint every so many entries."""

    def __init__(
        self, log: MetadataLog, *, poll_s: float, poll_max_s: float, checkpoint_entries: int
    ) -> None:
        self._log = log
        self._poll_s = poll_s
        self._poll_max_s = max(poll_s, poll_max_s)
        self._checkpoint_entries = checkpoint_entries
        self._nudged = asyncio.Event()
        self._followed = asyncio.Event()
        self._is_polled = False
        self._until = 0

    def nudge(self, next_entry: int = 0) -> None:
        """Poll now: another node has committed. `next_entry` is the number after its newest entry:
        then the entries below it are read and nothing else.
        """
        if not next_entry:
            self._is_polled = True
        elif next_entry <= self._log.state.next_entry:
            return
        self._until = max(self._until, next_entry)
        self._nudged.set()

    async def run(self) -> None:
        """Follow until cancelled. Raises CorruptObject, UnsupportedFormat: this release cannot go
        on; StoreUnavailable, if the log's store gives up.
        """
        async with task_group() as group:
            group.create_task(self._follow())
            group.create_task(self._maintain())

    async def _follow(self) -> None:
        pause, seen = self._poll_s, self._log.state.next_entry
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            except TimeoutError:
                self._is_polled = True
            until = 0 if self._is_polled else self._until
            self._is_polled, self._until = False, 0
            self._nudged.clear()
            state = await self._log.refresh(until=until)
            is_news = state.next_entry != seen
            pause = self._poll_s if is_news else min(pause * _SLOWER, self._poll_max_s)
            seen = state.next_entry
            self._followed.set()

    async def _maintain(self) -> None:
        """Write checkpoints when they are due. A large one takes seconds, or longer if the store
        does not take it: a node that did not follow meanwhile would miss that it was fenced.
        """
        while True:
            await self._followed.wait()
            self._followed.clear()
            await self._log.maintain(self._checkpoint_entries)
