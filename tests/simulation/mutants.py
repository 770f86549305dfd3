"""Bugs on purpose, each one that somebody has had: the worlds must notice every one of them.

A mutant replaces one function of the real code for the length of a test. What it breaks is in its
name; `wal` says which worlds it lives in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from lakehead.storage import garbage
from lakehead.storage.compaction import object_compaction
from lakehead.storage.compaction.object_compaction import MergePart, ObjectCompaction
from lakehead.storage.compaction.rewrite import Rewrite
from lakehead.storage.errors import OutcomeUnknown
from lakehead.storage.format.object_names import JobName
from lakehead.storage.garbage import GarbageCollector
from lakehead.storage.metadata import rules
from lakehead.storage.metadata.entry import entry_key
from lakehead.storage.metadata.log import LogCleaner, MetadataLog
from lakehead.storage.metadata.records import CommittedObject
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.stream import recovery, registration
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.upload import Uploader, UploadQueue
from lakehead.storage.wal import block_recovery
from lakehead.storage.wal.object.log import ObjectWal
from lakehead.storage.wal.object.put import Putter
from lakehead.storage.wal.object.seal import LogSealer
from lakehead.storage.wal.protocol import WalFloor

Patch = pytest.MonkeyPatch


def acknowledge_before_durable(patch: Patch) -> None:
    append = StreamEngine.append

    def mutant(self: Any, *args: Any) -> None:
        append(self, *args)
        self.released(self._wal.next_position)

    patch.setattr(StreamEngine, "append", mutant)


def acknowledge_out_of_sequence(patch: Patch) -> None:
    release = ObjectWal._release

    def mutant(self: Any) -> None:
        for group in self._writing:
            group.is_done = True
        release(self)

    patch.setattr(ObjectWal, "_release", mutant)


def count_a_hedge_before_its_response(patch: Patch) -> None:
    async def mutant(self: Any, key: str, put: Any, tries: Any) -> float:
        self._hedging.ended(put)
        return 0.0

    patch.setattr(Putter, "_race", mutant)


def take_any_object_for_ones_own(patch: Patch) -> None:
    patch.setattr(Putter, "_check_writer", lambda self, key, found: None)


def seal_without_a_tombstone(patch: Patch) -> None:
    async def mutant(self: Any, epoch: int, number: int) -> None:
        return None

    patch.setattr(LogSealer, "_claim", mutant)


def recover_from_the_first_number(patch: Patch) -> None:
    patch.setattr(recovery, "floor_of", lambda state, node_id: WalFloor(0, 0))


def forget_sealed_objects(patch: Patch) -> None:
    patch.setattr(recovery, "uncommitted", lambda sealed, state, node_id: [])


def trim_before_commit(patch: Patch) -> None:
    upload = UploadQueue._upload

    async def mutant(self: Any, snapshot: Any, previous: Any) -> None:
        if snapshot.wal_position is not None:
            await self._wal.trim(snapshot.wal_position)
        await upload(self, snapshot, previous)

    patch.setattr(UploadQueue, "_upload", mutant)


def trim_more_than_was_committed(patch: Patch) -> None:
    upload = UploadQueue._upload

    async def mutant(self: Any, snapshot: Any, previous: Any) -> None:
        await upload(self, snapshot, previous)
        if self._error is None:
            await self._wal.trim(self._wal.released_position)

    patch.setattr(UploadQueue, "_upload", mutant)


def commit_out_of_order(patch: Patch) -> None:
    upload = UploadQueue._upload

    async def mutant(self: Any, snapshot: Any, previous: Any) -> None:
        await upload(self, snapshot, None)

    patch.setattr(UploadQueue, "_upload", mutant)
    _without_the_rule(patch, "does not continue")


def accept_past_epochs(patch: Patch) -> None:
    patch.setattr(rules, "_committing_node", lambda state, record: state.nodes[record.node_id])
    _without_the_rule(patch, "WAL floor")


def _without_the_rule(patch: Patch, words: str) -> None:
    require = rules._require

    def mutant(condition: bool, reason: str) -> None:
        require(condition or words in reason, reason)

    patch.setattr(rules, "_require", mutant)


def commit_before_the_object_is_there(patch: Patch) -> None:
    _swallow_unknown_outcomes(patch, "data/")


def believe_that_an_entry_was_put(patch: Patch) -> None:
    _swallow_unknown_outcomes(patch, "meta/log/")


def _swallow_unknown_outcomes(patch: Patch, prefix: str) -> None:
    create = RetryingStore.create

    async def mutant(self: Any, key: str, pieces: Sequence[Buffer]) -> None:
        try:
            await create(self, key, pieces)
        except OutcomeUnknown:
            if not key.startswith(prefix):
                raise

    patch.setattr(RetryingStore, "create", mutant)


def name_objects_without_the_epoch(patch: Patch) -> None:
    def mutant(self: Any) -> str:
        self._next_object += 1
        return f"data/00/{self._writer.node_id}-0-{self._next_object}"

    patch.setattr(Uploader, "_next_key", mutant)


def recover_what_is_torn(patch: Patch) -> None:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    patch.setattr(block_recovery, "crc32c", lambda body: Anything())


def start_on_any_log(patch: Patch) -> None:
    patch.setattr(registration, "log_loss", lambda state, node_id, found: None)


def start_on_an_older_log(patch: Patch) -> None:
    patch.setattr(
        registration,
        "is_it",
        lambda node, found: found is not None and found.log_id == node.log.log_id,
    )


def recover_nothing(patch: Patch) -> None:
    async def mutant(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return
        yield

    patch.setattr(recovery, "chosen_blocks", mutant)


def forget_producers_with_their_records(patch: Patch) -> None:
    patch.setattr(StreamState, "state_sources", property(lambda stream: stream.extents))


def delete_without_grace(patch: Patch) -> None:
    turn = GarbageCollector.turn

    async def mutant(self: Any) -> None:
        self._settings = replace(self._settings, garbage_grace_s=0.0)
        await turn(self)

    patch.setattr(GarbageCollector, "turn", mutant)


def sweep_what_is_being_uploaded(patch: Patch) -> None:
    patch.setattr(garbage, "_has_ended", lambda state, name: True)


def sweep_what_recovery_needs(patch: Patch) -> None:
    patch.setattr(garbage, "_judge_wal", lambda state, name, size: garbage.Verdict.OLD_WAL)


def sweep_what_jobs_write(patch: Patch) -> None:
    _judge_jobs(patch, lambda name, entry: False)


def sweep_by_a_view_that_is_older(patch: Patch) -> None:
    """As if a name that is newer than the view had never been a job's, and the view was not read up
    to its end.
    """
    in_pages = garbage.garbage_in_pages

    class Unsure(NamedTuple):
        log: MetadataLog

        async def refresh(self, *, surely: bool) -> MetadataImage:
            assert surely, "the metadata are read up to their end"
            return await self.log.refresh()

    def mutant(store: Any, metadata: MetadataLog, *rest: Any) -> Any:
        return in_pages(store, cast("MetadataLog", Unsure(metadata)), *rest)

    patch.setattr(garbage, "garbage_in_pages", mutant)
    _judge_jobs(patch, lambda name, entry: name.entry <= entry)


def _judge_jobs(patch: Patch, may_enter: Callable[[JobName, int], bool]) -> None:
    class Mutated(NamedTuple):
        name: JobName

        def may_enter(self, entry: int) -> bool:
            return may_enter(self.name, entry)

        @staticmethod
        def parse(key: str) -> Mutated | None:
            name = JobName.parse(key)
            return None if name is None else Mutated(name)

    patch.setattr(garbage, "JobName", Mutated)


def compact_producers_away(patch: Patch) -> None:
    patch.setattr(Rewrite, "_carry_state", lambda self, part, info, sources: None)


def merge_whole_states_away(patch: Patch) -> None:
    gathered = object_compaction.gathered_parts

    def mutant(*args: Any) -> list[MergePart]:
        return [
            replace(part, info=msgspec.structs.replace(part.info, state=None, headers=b""))
            for part in gathered(*args)
        ]

    patch.setattr(object_compaction, "gathered_parts", mutant)


def clean_up_after_a_merge_that_won(patch: Patch) -> None:
    commit = ObjectCompaction._commit

    async def mutant(self: Any, runs: Any, streams: Any, objects: Sequence[CommittedObject]) -> Any:
        done = await commit(self, runs, streams, objects)
        await self.store.delete([one.key for one in objects])
        return done

    patch.setattr(ObjectCompaction, "_commit", mutant)


def delete_entries_before_the_boundary_moves(patch: Patch) -> None:
    round_ = LogCleaner._round

    async def mutant(self: Any, every: int) -> None:
        await self._store.delete([entry_key(self._reader.state.next_entry - 1)])
        await round_(self, every)

    patch.setattr(LogCleaner, "_round", mutant)


class Mutant(NamedTuple):
    """A bug and the worlds it is let loose in, from `first_seed` on: many a world is not one in
    which it shows. `merges`: whether small objects are merged there; `sweeps`: whether processes
    sweep there beside the nodes.
    """

    apply: Callable[[Patch], None]
    wal: str
    first_seed: int = 0
    merges: bool = False
    sweeps: bool = False


MUTANTS = [
    Mutant(acknowledge_before_durable, "block"),
    Mutant(acknowledge_before_durable, "object"),
    Mutant(acknowledge_out_of_sequence, "object", first_seed=10),
    Mutant(count_a_hedge_before_its_response, "object"),
    Mutant(take_any_object_for_ones_own, "object", first_seed=10),
    Mutant(seal_without_a_tombstone, "object", first_seed=6),
    Mutant(recover_from_the_first_number, "object"),
    Mutant(forget_sealed_objects, "object"),
    Mutant(trim_before_commit, "block"),
    Mutant(trim_before_commit, "object"),
    Mutant(trim_more_than_was_committed, "memory"),
    Mutant(commit_out_of_order, "memory"),
    Mutant(accept_past_epochs, "object", first_seed=4),
    Mutant(commit_before_the_object_is_there, "memory"),
    Mutant(believe_that_an_entry_was_put, "memory"),
    Mutant(name_objects_without_the_epoch, "memory"),
    Mutant(recover_what_is_torn, "block", first_seed=104),
    Mutant(recover_nothing, "object-elsewhere"),
    Mutant(start_on_any_log, "block"),
    Mutant(start_on_any_log, "object-elsewhere"),
    Mutant(start_on_an_older_log, "block", first_seed=319),
    Mutant(start_on_an_older_log, "object-elsewhere", first_seed=298),
    Mutant(forget_producers_with_their_records, "memory"),
    Mutant(forget_producers_with_their_records, "object", first_seed=200),
    Mutant(delete_without_grace, "memory"),
    Mutant(sweep_what_is_being_uploaded, "memory", first_seed=190),
    Mutant(sweep_what_recovery_needs, "object"),
    Mutant(sweep_what_jobs_write, "memory"),
    Mutant(sweep_by_a_view_that_is_older, "object", first_seed=80, sweeps=True),
    Mutant(compact_producers_away, "memory"),
    Mutant(compact_producers_away, "object"),
    Mutant(merge_whole_states_away, "memory", first_seed=20, merges=True),
    Mutant(clean_up_after_a_merge_that_won, "object", merges=True),
    Mutant(delete_entries_before_the_boundary_moves, "memory"),
]
