"""Materializes the declared tables of a cluster: one pass over due tables, or until stopped.

The tables of a topic have a lease while they are worked on. Topics are worked on side by side, in
rounds of a bounded size, so that one that is far behind does not delay the others. One read of a
topic serves those of its tables that are level. An error of one table is reported, and the table is
tried again after a pause; the others go on. Files of tables are
maintained in a thread of its own, so that a table under a long OPTIMIZE still gets its records.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, zip_longest
from random import Random

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.errors import as_error
from lakehead.lake.jobs.backfill import Beginning, begin_at
from lakehead.lake.jobs.catalog_publisher import CatalogPublisher
from lakehead.lake.jobs.replay import ReplayResult, replay_dead_letters
from lakehead.lake.jobs.table_due import (
    Lag,
    chosen_tables,
    declared_tables,
    is_due,
    lag_of,
    topic_of,
)
from lakehead.lake.jobs.table_lease import LEASE_S, OnWait, TableLeases, TableTaken
from lakehead.lake.jobs.table_maintenance import (
    MaintenanceResult,
    TableTarget,
    maintain_files,
    targets,
)
from lakehead.lake.jobs.table_rebuild import RebuildResult, rebuild_table
from lakehead.lake.jobs.table_run import RecordUnreadable, TableRun
from lakehead.lake.jobs.table_schema import SchemaConflict
from lakehead.lake.jobs.table_settings import (
    MaterializeResult,
    MaterializeSettings,
    Progress,
    declared_settings,
)
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.store_reader import ObjectReader, store_reader
from lakehead.lake.tables.delta_table import TableUnavailable, open_table
from lakehead.lake.tables.merge_engine import MergeEngineName
from lakehead.lake.tables.owner import is_of_topic
from lakehead.lake.tables.table_root import check_declared_place
from lakehead.storage.backoff import Backoff
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    LakeheadError,
    ObjectNotFound,
    SettingsError,
    StorageError,
    StoreUnavailable,
    UnknownTopic,
)
from lakehead.storage.jobs.job import Runner, no_wait
from lakehead.storage.metadata.state import TableState, TopicState

LOOK_S = 300.0
"""Interval between checks of the tables: each costs a listing and a few requests a table."""

_END_S = 10.0

OnMaintained = Callable[[MaintenanceResult], None]


@contextmanager
def _files_maintained(
    leases: TableLeases,
    topics: Sequence[str],
    on_files: OnMaintained | None,
    *,
    every_s: float = LOOK_S,
) -> Iterator[None]:
    """Maintain the files of the declared tables (of `topics`, or of all) while the block runs, and
    call `on_files` with each result; nothing with None. A table whose lease another process holds
    is left to that process.

    A job that runs at the end of the block may be ended anywhere.
    """
    if on_files is None:
        yield
        return
    stopped = threading.Event()

    def run() -> None:
        while True:
            for target in _looked(leases, topics):
                for result in maintain_files(target, partial(leases.kept, target.topic_id)):
                    if not isinstance(result.error, TableTaken):
                        on_files(result)
                if stopped.is_set():
                    return
            if stopped.wait(every_s):
                return

    thread = threading.Thread(target=run, name="table-files", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_END_S)


def _looked(leases: TableLeases, topics: Sequence[str]) -> Sequence[TableTarget]:
    try:
        return targets(leases.catalog(), topics)
    except BaseException as caught:  # noqa: BLE001 - the next look may find more
        as_error(caught, "maintenance of tables")  # the job that follows them reports it
        return ()


ROUND_BYTES = 256 << 20
"""Bytes of stored records of a round: what other tables wait for, and what is in memory at most."""

_POLL_S = (0.2, 2.0)
_PAUSE_S = (2.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """The outcome of a turn at a table: the result of the run, the lag, and the error, if any.
    `key` is the table's (`TableDeclaration.key`), `table` its root.
    """

    key: str
    topic: str
    table: str
    result: MaterializeResult
    lag: Lag
    error: LakeheadError | None = None


OnOutcome = Callable[[TableOutcome], None]


def declares_table(path: str, table: str) -> bool:
    """Return whether a topic of the cluster at `path`, or that of the table with this key, declares
    a table. Raises UnknownTopic, and as `Catalog.open`.
    """
    return store_reader(path).open_catalog().topic(topic_of(table)).declares_table


class _TopicProgress:
    """The progress and the problems of a topic's tables, as the lease of the topic has them.
    Retention goes by the table that holds least.
    """

    def __init__(self, leases: TableLeases, path: str, tables: Sequence[TableDeclaration]) -> None:
        self.tables = tuple(tables)
        self._leases = leases
        self._path = path
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._problems: dict[str, str] = {}

    def report(self, declared: TableDeclaration, offsets: tuple[int, ...]) -> None:
        """Take note of what a table holds. A table that has reported nothing is looked at."""
        self._offsets[declared.key] = offsets
        for one in self.tables:
            if one.key not in self._offsets:
                self._offsets[one.key] = self._held(one, len(offsets))
        each = [self._offsets[one.key] for one in self.tables]
        least = tuple(map(min, zip_longest(*each, fillvalue=0)))
        self._leases.report(declared.topic_id, least)

    def report_problem(self, declared: TableDeclaration, problem: str) -> None:
        """Take note of why the turn at a table failed; empty: it did not."""
        self._problems[declared.key] = problem
        problems = [
            f"{key}: {words}" if declared.is_named else words
            for key, words in self._problems.items()
            if words
        ]
        self._leases.report_problem(declared.topic_id, "\n".join(problems))

    def _held(self, declared: TableDeclaration, partitions: int) -> tuple[int, ...]:
        try:
            table = open_table(declared.uri(self._path))
            if table is None or not is_of_topic(table, declared.topic_id):
                return ()
            return tuple(
                table.last_offset(declared.topic_id, partition) + 1
                for partition in range(partitions)
            )
        except TableUnavailable:
            return ()


class _Guard:
    """The lease of a topic's tables as the run of one of them sees it."""

    def __init__(
        self, leases: TableLeases, declared: TableDeclaration, progress: _TopicProgress
    ) -> None:
        self._leases = leases
        self._declared = declared
        self._progress = progress

    def check(self) -> None:
        self._leases.check(self._declared.topic_id)

    def report(self, offsets: tuple[int, ...]) -> None:
        self._progress.report(self._declared, offsets)


class _Kept:
    """A table that this process keeps. `progress` is of all tables of its topic."""

    def __init__(self, declared: TableDeclaration, progress: _TopicProgress) -> None:
        self.declared = declared
        self.progress = progress
        self.run: TableRun | None = None
        self.lease_term = -1
        """Of the lease that `run` works under (`TableLeases.keep`)."""
        self.offsets: tuple[int, ...] = ()
        self.not_before = 0.0
        self.backoff = Backoff(Random(declared.topic_id), first_s=_PAUSE_S[0], most_s=_PAUSE_S[1])

    @property
    def has_more(self) -> bool:
        """True if the next round is due immediately."""
        return self.run is not None and self.run.has_more


class DeclaredTables:
    """The declared tables of the cluster at `path`, or those of `topics` alone (each a topic, or
    the key of one table). With `tail`, tables
    that are followed have what is acknowledged in object WALs too. Work items go to `runner`, or to
    threads of this process; `engine` runs the MERGE of tables by upsert. Progress is of the table
    that is worked on. `written_by` names the run in the tables' histories. `on_wait` gets the
    reason for which a lease is waited for.
    """

    def __init__(
        self,
        path: str,
        *,
        topics: Sequence[str] = (),
        workers: int = 2,
        wait_s: float = 0.0,
        tail: bool = False,
        engine: MergeEngineName = "delta-rs",
        runner: Runner | None = None,
        on_progress: Progress = lambda _done, _total: None,
        lease_s: float = LEASE_S,
        written_by: str = "",
        on_wait: OnWait = no_wait,
    ) -> None:
        self._path = path
        self._topics = tuple(topics)
        self._workers = workers
        self._wait_s = wait_s
        self._engine: MergeEngineName = engine
        self._runner = runner
        self._on_progress = on_progress
        self._written_by = written_by
        self._clock = SystemClock()
        self._leases = TableLeases.open(path, lease_s=lease_s, on_wait=on_wait)
        self._publisher = CatalogPublisher(path)
        self._kept: dict[str, _Kept] = {}
        self._troubles: dict[str, str] = {}
        self._snapshots = Snapshots(store_reader(path), select=self._streams) if tail else None

    def close(self) -> None:
        """Publish what waits for a catalog, and give the leases back."""
        self._publisher.close()
        self._leases.close()

    # ------------------------------------------------------------------------------------- once

    def catch_up(self, *, all_of_them: bool, on_table: OnOutcome, dry_run: bool = False) -> None:
        """Bring the tables that are due (or `all_of_them`) up to what lies in objects now.

        Raises UnknownTopic, SettingsError for topics that were named and declare no table.
        """
        catalog = self._leases.catalog()
        chosen_tables(catalog, self._topics)
        for kept in self._by_topic(self._fresh(catalog, on_table)):
            topic = catalog.topic(kept[0].declared.topic)
            known = catalog.state.tables.get(topic.topic_id, TableState())
            lag = lag_of(catalog.state, topic, known.offsets)
            now_ms = self._clock.now_ms()
            if all_of_them or any(is_due(one.declared, lag, now_ms) for one in kept):
                self._catch_up_topic(catalog, kept, on_table, dry_run=dry_run)

    def _catch_up_topic(
        self, catalog: Catalog, kept: Sequence[_Kept], on_table: OnOutcome, *, dry_run: bool
    ) -> None:
        errors: dict[str, LakeheadError] = {}
        for one in kept:  # before the lease: a table in another's folder changes nothing
            try:
                check_declared_place(catalog, one.declared)
            except SettingsError as refused:
                errors[one.declared.key] = refused
        placed = [one for one in kept if one.declared.key not in errors]
        try:
            if placed:
                with self._lease(kept[0].declared, needed=not dry_run):
                    self._rounds(catalog, placed, errors, dry_run=dry_run)
        except BaseException as caught:  # noqa: BLE001 - one topic never stops the others
            error = as_error(caught, f"tables of topic {kept[0].declared.topic}")
            errors |= {one.declared.key: error for one in kept if one.declared.key not in errors}
        for one in kept:
            error_of_one = errors.get(one.declared.key)
            if not dry_run and error_of_one is None:
                self._publisher.take(one.declared)
            on_table(self._outcome(catalog, one.declared, one.run, error_of_one))

    def _rounds(
        self,
        catalog: Catalog,
        kept: Sequence[_Kept],
        errors: dict[str, LakeheadError],
        *,
        dry_run: bool,
    ) -> None:
        """Work round by round on the tables of a topic, each until it is level or fails."""
        for one in kept:
            with self._failing(one, errors):
                one.run = self._open_run(one, dry_run=dry_run)
                if len(kept) > 1 and not dry_run:
                    one.run.begin(catalog)
        left = [one for one in kept if one.declared.key not in errors]
        while left:
            runs = [one.run for one in left if one.run is not None]
            rounds_max = None if len(left) == 1 else 1
            before = [run.result.commits for run in runs]
            for one, run in zip(left, runs, strict=True):
                errors.pop(one.declared.key, None)
                with self._failing(one, errors):
                    beside = [other for other in runs if other is not run]
                    run.catch_up(catalog, rounds_max=rounds_max, beside=beside)
            left = [
                one
                for one, run, commits in zip(left, runs, before, strict=True)
                if run.has_more
                and run.result.commits != commits
                # One that pauses before a record goes on with other partitions.
                and isinstance(errors.get(one.declared.key), RecordUnreadable | None)
            ]

    @contextmanager
    def _failing(self, kept: _Kept, errors: dict[str, LakeheadError]) -> Iterator[None]:
        """Keep the error of the block as that of a table: the others go on."""
        try:
            with self._reported(kept):
                yield
        except BaseException as caught:  # noqa: BLE001 - one table never stops the others
            errors[kept.declared.key] = as_error(caught, f"table of topic {kept.declared.topic}")

    def maintain_files(self, on_files: OnMaintained, *, dry_run: bool = False) -> None:
        """Run OPTIMIZE and VACUUM where they are due, or with `dry_run` report what is due."""
        for target in targets(self._leases.catalog(), self._topics):
            hold = partial(self._hold, target.topic_id)
            for result in maintain_files(target, hold, dry_run=dry_run):
                on_files(result)

    def replay(self, table: str, *, dry_run: bool = False) -> ReplayResult:
        """Bring the dead letters of a table that can be rows now into it.

        Raises UnknownTopic, SettingsError, TableTaken, and as `replay_dead_letters`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, table)
        settings = self._settings(declared, dry_run=dry_run)
        with self._lease(declared, needed=not dry_run):
            guard = self._guard(catalog, declared)
            return replay_dead_letters(settings, store_reader(self._path), catalog, guard)

    def begin(self, table: str, *, at: Beginning) -> MaterializeResult:
        """Have a table begin there, also if it has newer records already.

        Raises UnknownTopic, SettingsError, TableTaken, and as `begin_at`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, table)
        settings = replace(self._settings(declared), commit_bytes=ROUND_BYTES)
        with self._lease(declared, needed=True):
            guard = self._guard(catalog, declared)
            return begin_at(settings, store_reader(self._path), catalog, guard, at=at)

    def rebuild(
        self,
        table: str,
        *,
        without_history: bool = False,
        dry_run: bool = False,
        on_progress: Progress = lambda _done, _total: None,
    ) -> RebuildResult:
        """Rebuild a table by its present declaration.

        Raises UnknownTopic, SettingsError, TableTaken, and as `rebuild_table`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, table)
        settings = self._settings(declared, dry_run=dry_run)
        with self._lease(declared, needed=not dry_run):
            return rebuild_table(
                settings,
                store_reader(self._path),
                catalog,
                self._guard(catalog, declared),
                without_history=without_history,
                on_progress=on_progress,
            )

    def _lease(self, declared: TableDeclaration, *, needed: bool) -> AbstractContextManager[None]:
        return self._hold(declared.topic_id) if needed else nullcontext()

    def _hold(self, topic_id: str) -> AbstractContextManager[None]:
        return self._leases.held(topic_id, wait_s=self._wait_s)

    def _one(self, catalog: Catalog, table: str) -> TableDeclaration:
        """Return the declaration of a table by its key, or by a topic that has one table. Raises
        UnknownTopic, SettingsError.
        """
        found = chosen_tables(catalog, [table])
        if len(found) > 1:
            raise SettingsError(f"topic {table} has several tables, name one: {', '.join(found)}")
        [declared] = found.values()
        if isinstance(declared, SettingsError):
            raise declared
        check_declared_place(catalog, declared)
        return declared

    def _guard(self, catalog: Catalog, declared: TableDeclaration) -> _Guard:
        each = TableDeclaration.each_of(catalog.topic(declared.topic))
        return _Guard(self._leases, declared, _TopicProgress(self._leases, self._path, each))

    # --------------------------------------------------------------------------------- for ever

    def names(self) -> tuple[str, ...]:
        """Return the names of the tables that `follow` keeps, as they are declared now.

        Raises UnknownTopic, SettingsError for topics that were named and declare no table.
        """
        return tuple(chosen_tables(self._leases.catalog(), self._topics))

    def follow(
        self,
        stopped: threading.Event,
        on_table: OnOutcome,
        *,
        on_files: OnMaintained | None = None,
        files_every_s: float = LOOK_S,
    ) -> None:
        """Keep the tables as fresh as they are declared, until `stopped` is set. While the store
        cannot be reached, requests are repeated. With `on_files` the tables' files are maintained
        at the same time, because another process could never get their leases.

        Raises UnknownTopic, SettingsError for topics that were named and declare no table.
        """
        chosen_tables(self._leases.catalog(), self._topics)
        with (
            _files_maintained(self._leases, self._topics, on_files, every_s=files_every_s),
            ThreadPoolExecutor(self._workers, thread_name_prefix="table") as pool,
        ):
            while not stopped.is_set():
                self._leases.check_alive()
                try:
                    catalog, reader = self._look()
                    self._hand_over(catalog)
                    due = self._take_what_is_due(catalog, on_table)
                except StoreUnavailable as error:
                    self._report_error(on_table, "metadata", error)
                    stopped.wait(_PAUSE_S[0])
                    continue
                turns = partial(self._topic_turn, catalog, reader)
                for outcomes in pool.map(turns, self._by_topic(due)):
                    for outcome in outcomes:
                        if outcome.error is not None or outcome.result.commits:
                            on_table(outcome)
                is_more_due = any(kept.has_more for kept in due)
                stopped.wait(0.0 if is_more_due else self._poll_s())

    def _look(self) -> tuple[Catalog, ObjectReader]:
        if self._snapshots is None:
            return self._leases.catalog(), store_reader(self._path)
        snapshot = self._snapshots.now()
        return snapshot.catalog, snapshot

    def _streams(self, catalog: Catalog) -> Iterator[int]:
        """The streams of the tables that are kept."""
        for topic in {topic_of(key) for key in declared_tables(catalog.state, self._topics)}:
            yield from catalog.topic(topic).partitions

    def _hand_over(self, catalog: Catalog) -> None:
        """Give back the leases that other processes have requested: no round runs now."""
        if released := self._leases.hand_over(catalog.state):
            for kept in self._kept.values():
                if kept.declared.topic_id in released:
                    kept.run = None  # the other process may commit to the table

    def _take_what_is_due(self, catalog: Catalog, on_table: OnOutcome) -> list[_Kept]:
        """Return the tables to work on, in the order of their keys: those that are due, and with
        them others of their topics, which the same reads bring up.
        """
        fresh = {one.declared.key: one for one in self._fresh(catalog, on_table)}
        ids = {one.declared.topic_id for one in fresh.values()}
        for key in self._kept.keys() - fresh.keys():
            topic_id = self._kept.pop(key).declared.topic_id
            if topic_id not in ids:
                self._leases.release(topic_id)
        ready, due = [], set()
        for key, new in fresh.items():
            kept = self._kept.get(key)
            if kept is None or kept.progress.tables != new.progress.tables:
                kept = self._kept[key] = new
            lag = lag_of(catalog.state, catalog.topic(kept.declared.topic), kept.offsets)
            if self._leases.is_requested(catalog.state, kept.declared.topic_id):
                continue
            if kept.not_before <= self._clock.monotonic() and lag.records:
                ready.append(kept)
                if is_due(kept.declared, lag, self._clock.now_ms()):
                    due.add(kept.declared.topic_id)
        return [kept for kept in ready if kept.declared.topic_id in due]

    def _fresh(self, catalog: Catalog, on_table: OnOutcome) -> list[_Kept]:
        """Return the declared tables as none of them was worked on, in the order of their keys."""
        found, progress = [], dict[str, _TopicProgress]()
        for declared in self._declared(catalog, on_table):
            if declared.topic_id not in progress:
                each = TableDeclaration.each_of(catalog.topic(declared.topic))
                progress[declared.topic_id] = _TopicProgress(self._leases, self._path, each)
            found.append(_Kept(declared, progress[declared.topic_id]))
        return found

    @staticmethod
    def _by_topic(kept: Sequence[_Kept]) -> list[list[_Kept]]:
        return [list(some) for _, some in groupby(kept, lambda one: one.declared.topic_id)]

    def _topic_turn(
        self, catalog: Catalog, reader: ObjectReader, kept: Sequence[_Kept]
    ) -> list[TableOutcome]:
        """One round of each of these tables of a topic."""
        return [self._turn(catalog, reader, one, kept) for one in kept]

    def _turn(
        self, catalog: Catalog, reader: ObjectReader, kept: _Kept, of_topic: Sequence[_Kept]
    ) -> TableOutcome:
        """One round of a table; the next is not before a pause if there was nothing to do, or if it
        failed. Its reads serve the other tables of the topic too.
        """
        declared = kept.declared
        is_first = kept.run is None
        before = MaterializeResult() if kept.run is None else kept.run.result
        error: LakeheadError | None = None
        try:
            check_declared_place(catalog, declared)
            term = self._leases.keep(declared.topic_id)
            if term != kept.lease_term:
                # The lease was lost, and another process may have removed records that wait in this
                # run for their commit (`forget`).
                kept.run, kept.lease_term = None, term
                before = MaterializeResult()
            with self._reported(kept):
                kept.run = kept.run or self._open_run(kept)
                beside = [one.run for one in of_topic if one is not kept and one.run is not None]
                self._round(catalog, reader, kept.run, beside)
            kept.backoff.reset()
            if is_first or kept.run.result.commits != before.commits:
                self._publisher.take(declared)
            if kept.run.result.commits == before.commits:  # undecided transactions, for one
                kept.not_before = self._clock.monotonic() + declared.freshness_ms / 2000
        except BaseException as caught:  # noqa: BLE001 - one table never stops the others
            error = as_error(caught, f"table of topic {declared.topic}")
            kept.not_before = self._clock.monotonic() + kept.backoff.next_s()
            if isinstance(error, (SettingsError, SchemaConflict)):
                # The remedy in its message, such as a rebuild, is for another process.
                with suppress(StorageError):
                    self._leases.release(declared.topic_id)
        run = kept.run
        if error is not None and not isinstance(error, TableTaken):
            kept.run = None
        if run is not None:
            kept.offsets = run.held_offsets()
        outcome = self._outcome(catalog, declared, run, error)
        return replace(outcome, result=outcome.result.since(before))

    def _round(
        self, catalog: Catalog, reader: ObjectReader, run: TableRun, beside: Sequence[TableRun]
    ) -> None:
        try:
            run.catch_up(catalog, rounds_max=1, reader=reader, beside=beside)
        except ObjectNotFound:
            if self._snapshots is None:
                raise
            # A WAL object of the tail was uploaded meanwhile: the next look finds it elsewhere.

    @contextmanager
    def _reported(self, kept: _Kept) -> Iterator[None]:
        """Have the cluster know, by the lease, why this turn at a table failed, if it does."""
        try:
            yield
        except BaseException as caught:
            problem = as_error(caught, f"table of topic {kept.declared.topic}")
            kept.progress.report_problem(kept.declared, str(problem))
            if problem is caught:
                raise
            raise problem from caught
        kept.progress.report_problem(kept.declared, "")

    def _poll_s(self) -> float:
        """A tenth of the freshness that is wanted most."""
        wanted = [kept.declared.freshness_ms / 10_000 for kept in self._kept.values()]
        least, most = _POLL_S
        return min(max(min(wanted, default=most), least), most)

    # ---------------------------------------------------------------------------------- of both

    def _declared(self, catalog: Catalog, on_table: OnOutcome) -> list[TableDeclaration]:
        found = []
        for key, declared in declared_tables(catalog.state, self._topics).items():
            if isinstance(declared, SettingsError):
                self._report_error(on_table, key, declared)
            else:
                found.append(declared)
        return found

    def _report_error(self, on_table: OnOutcome, topic: str, error: LakeheadError) -> None:
        """Report an error of a declaration, or of all of them, once while it lasts."""
        if self._troubles.get(topic) != str(error):
            self._troubles[topic] = str(error)
            outcome = TableOutcome(
                key=topic, topic=topic, table="", result=MaterializeResult(), lag=Lag(), error=error
            )
            on_table(outcome)

    def _settings(
        self, declared: TableDeclaration, *, dry_run: bool = False
    ) -> MaterializeSettings:
        return declared_settings(
            declared,
            self._path,
            workers=self._workers,
            dry_run=dry_run,
            engine=self._engine,
            written_by=self._written_by,
        )

    def _open_run(self, kept: _Kept, *, dry_run: bool = False) -> TableRun:
        settings = self._settings(kept.declared, dry_run=dry_run)
        guard = _Guard(self._leases, kept.declared, kept.progress)
        if not dry_run:
            settings = replace(settings, commit_bytes=ROUND_BYTES)
        reader = store_reader(self._path)
        return TableRun(settings, reader, guard, self._on_progress, runner=self._runner)

    def _outcome(
        self,
        catalog: Catalog,
        declared: TableDeclaration,
        run: TableRun | None,
        error: LakeheadError | None,
    ) -> TableOutcome:
        topic: TopicState | None
        try:
            topic = catalog.topic(declared.topic)
        except UnknownTopic:
            topic = None
        offsets = () if run is None else run.held_offsets()
        return TableOutcome(
            key=declared.key,
            topic=declared.topic,
            table=declared.uri(self._path),
            result=MaterializeResult() if run is None else run.result,
            lag=Lag() if topic is None else lag_of(catalog.state, topic, offsets),
            error=error,
        )
