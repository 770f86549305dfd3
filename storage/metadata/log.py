"""The metadata log: numbered entries, each created with put-if-absent. Whoever creates number N has
decided N.

A commit plans records against the newest state known here, checks them by the rules, and tries to
create the next number: done when the store says so; *lost* when another's entry has the number (it
is applied, and the plan is made again); *unknown* after a timeout or a lost answer (resolved by
reading the number back and comparing writer and nonce). Concurrent commits of one process are
planned one after the other and travel in one entry.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.clock import Clock
from storage.errors import (
    EntryRejected,
    LakeheadError,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
)
from storage.failpoints import failpoint
from storage.metadata.entry import decode_entry, encode_entry, entry_key
from storage.metadata.records import ENTRY_VERSION, ClusterCreated, Entry, Record
from storage.metadata.state import ClusterState
from storage.object_store.protocol import ObjectStore

_READS_AT_ONCE = 16
_RETRY_S = 0.05
_RETRY_MAX_S = 5.0

Plan = Callable[[ClusterState], Sequence[Record]]


_Planned = tuple[Plan, asyncio.Future[ClusterState]]


class _Proposal(NamedTuple):
    """An entry on its way to a number. Kept until its fate is known, even if whoever drove it is
    cancelled: a proposal that may have landed must not be planned a second time.
    """

    number: int
    entry: Entry
    planned: list[_Planned]


class MetadataLog:
    """One process's view of the log: the newest known state, and the way to change it."""

    def __init__(
        self, store: ObjectStore, *, writer_id: str, clock: Clock, rng: random.Random
    ) -> None:
        self.state = ClusterState()
        self._store = store
        self._writer_id = writer_id
        self._clock = clock
        self._rng = rng
        self._subscribers: list[Callable[[ClusterState], None]] = []
        self._waiting: deque[_Planned] = deque()
        self._proposal: _Proposal | None = None
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, store: ObjectStore, *, writer_id: str, clock: Clock, rng: random.Random
    ) -> "MetadataLog":
        """Replay the log. Raises UnsupportedFormat, CorruptObject, StoreUnavailable."""
        log = cls(store, writer_id=writer_id, clock=clock, rng=rng)
        await log.refresh()
        return log

    def subscribe(self, callback: Callable[[ClusterState], None]) -> None:
        """Call `callback(state)` on the loop after each change of state."""
        self._subscribers.append(callback)

    async def refresh(self) -> ClusterState:
        """Apply the entries that others have added, and return the newest state."""
        async with self._lock:
            await self._catch_up()
        return self.state

    async def create_cluster(self, cluster_id: str) -> ClusterState:
        """Make the cluster if the log is empty. Returns the state, whoever made it."""

        def plan(state: ClusterState) -> Sequence[Record]:
            return () if state.cluster_id else (ClusterCreated(cluster_id=cluster_id),)

        return await self.commit_with(plan)

    async def commit(self, records: Sequence[Record]) -> ClusterState:
        """Commit `records` as they are. Raises EntryRejected when the rules refuse them."""
        return await self.commit_with(lambda _: records)

    async def commit_with(self, plan: Plan) -> ClusterState:
        """Commit the records that `plan(state)` returns; it is asked again when another's entry
        comes first.

        Atomic: all of a plan's records are in one entry. An empty plan commits nothing. Whatever
        `plan` raises reaches the caller, and nothing was committed then.
        """
        future: asyncio.Future[ClusterState] = asyncio.get_running_loop().create_future()
        self._waiting.append((plan, future))
        try:
            async with self._lock:
                # Somebody else's turn may have carried this plan along.
                while not future.done():
                    await self._commit_group()
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future.result()

    async def _commit_group(self) -> None:
        """Plan all that waits, put it as one entry, answer; after a lost race leave it waiting."""
        if self._proposal is None:
            self._proposal = self._propose()
        proposal = self._proposal
        if proposal.entry.records:
            won = await self._put(proposal)
        else:
            won = True
        self._proposal = None
        if not won:
            self._waiting.extendleft(reversed(proposal.planned))
            await self._catch_up()
            return
        if proposal.entry.records and proposal.number == self.state.next_entry:
            self._apply(proposal.entry)
        for _, future in proposal.planned:
            if not future.cancelled():
                future.set_result(self.state)

    def _propose(self) -> "_Proposal":
        state = self.state
        records: list[Record] = []
        planned: list[_Planned] = []
        for plan, future in self._waiting:
            if future.cancelled():
                continue
            try:
                wanted = tuple(plan(state))
                entry = self._entry(wanted)
                encode_entry(entry)
                state = state.with_records(wanted, entry.time_ms)
            except LakeheadError as error:
                future.set_exception(error)
                continue
            records += wanted
            planned.append((plan, future))
        self._waiting.clear()
        return _Proposal(self.state.next_entry, self._entry(tuple(records)), planned)

    def _entry(self, records: tuple[Record, ...]) -> Entry:
        return Entry(
            version=ENTRY_VERSION,
            writer=self._writer_id,
            nonce=f"{self._rng.getrandbits(64):016x}",
            time_ms=self._clock.now_ms(),
            records=records,
        )

    async def _put(self, proposal: "_Proposal") -> bool:
        """Try to create the proposal's number. False: another has it. Waits out a failing store."""
        key = entry_key(proposal.number)
        body = encode_entry(proposal.entry)
        pause = _RETRY_S
        while True:
            failpoint("metadata_entry_planned")
            try:
                await self._store.create(key, [body])
                failpoint("metadata_entry_put")
                return True
            except ObjectExists:
                return await self._is_ours(key, proposal.entry)
            except OutcomeUnknown:
                # Not there yet is no proof that it never will be: only putting the same entry
                # again, under the same number, settles who has the number.
                with contextlib.suppress(ObjectNotFound):
                    return await self._is_ours(key, proposal.entry)
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 2, _RETRY_MAX_S)

    async def _is_ours(self, key: str, entry: Entry) -> bool:
        found = decode_entry(key, await self._store.get(key))
        return (found.writer, found.nonce) == (entry.writer, entry.nonce)

    async def _catch_up(self) -> None:
        """Apply every entry from the next number on."""
        while True:
            first = self.state.next_entry
            bodies = await self._read_ahead(first)
            for number, body in enumerate(bodies, first):
                self._apply(decode_entry(entry_key(number), body))
            if len(bodies) < _READS_AT_ONCE:
                return

    async def _read_ahead(self, first: int) -> list[bytes]:
        """Return the entries at the next numbers: one probe, then a handful at once."""
        try:
            bodies = [await self._store.get(entry_key(first))]
        except ObjectNotFound:
            return []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._read_or_empty(entry_key(number)))
                    for number in range(first + 1, first + _READS_AT_ONCE)
                ]
        except* LakeheadError as errors:
            raise errors.exceptions[0] from None
        for task in tasks:
            if not task.result():
                break
            bodies.append(task.result())
        return bodies

    async def _read_or_empty(self, key: str) -> bytes:
        try:
            return await self._store.get(key)
        except ObjectNotFound:
            return b""

    def _apply(self, entry: Entry) -> None:
        try:
            self.state = self.state.apply(entry)
        except EntryRejected:
            # Every reader refuses it by the same rules: it takes its number and does nothing.
            self.state = self.state.refuse(entry)
        for callback in self._subscribers:
            callback(self.state)
