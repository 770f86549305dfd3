"""Materializes the declared tables of a cluster: one pass over due tables, or until stopped.

Each table has a lease while it is worked on. Tables are worked on side by side, in rounds of a
bounded size, so that one that is far behind does not delay the others. An error of one table is
reported, and the table is tried again after a pause; the others go on. Files of tables are
maintained in a thread of its own, so that a table under a long OPTIMIZE still gets its records.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.errors import as_error
from lakehead.lake.jobs.backfill import Beginning, begin_at
from lakehead.lake.jobs.catalog_publisher import CatalogPublisher
from lakehead.lake.jobs.replay import ReplayResult, replay_dead_letters
from lakehead.lake.jobs.table_due import Lag, declared_tables, is_due, lag_of
from lakehead.lake.jobs.table_lease import LEASE_S, TableLeases, TableTaken
from lakehead.lake.jobs.table_maintenance import (
    MaintenanceResult,
    TableTarget,
    maintain_files,
    targets,
)
from lakehead.lake.jobs.table_rebuild import RebuildResult, rebuild_table
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_schema import SchemaConflict
from lakehead.lake.jobs.table_settings import (
    MaterializeResult,
    MaterializeSettings,
    Progress,
    declared_settings,
)
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.store_reader import ObjectReader, store_reader
from lakehead.lake.tables.merge_engine import MergeEngineName
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
from lakehead.storage.jobs.job import Runner
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
                for result in maintain_files(target, partial(_kept, leases, target.topic_id)):
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


@contextmanager
def _kept(leases: TableLeases, topic_id: str) -> Iterator[None]:
    leases.keep(topic_id)  # not given back: a process that follows the table needs it as well
    yield


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
    """The outcome of a turn at a table: the result of the run, the lag, and the error, if any."""

    topic: str
    table: str
    result: MaterializeResult
    lag: Lag
    error: LakeheadError | None = None


OnOutcome = Callable[[TableOutcome], None]


def declares_table(path: str, topic: str) -> bool:
    """Return whether a topic of the cluster at `path` declares a table. Raises UnknownTopic, and as
    `Catalog.open`.
    """
    return store_reader(path).open_catalog().topic(topic).declares_table


def _declares_none(topic: str) -> SettingsError:
    return SettingsError(
        f"topic {topic} declares no table: set lakehead.table.enable=true, or name a table with "
        "--table"
    )


class _Guard:
    """The lease of one table as its run sees it."""

    def __init__(self, leases: TableLeases, topic_id: str) -> None:
        self._leases = leases
        self._topic_id = topic_id

    def check(self) -> None:
        self._leases.check(self._topic_id)

    def report(self, offsets: tuple[int, ...]) -> None:
        self._leases.report(self._topic_id, offsets)


class _Kept:
    """A table that this process keeps."""

    def __init__(self, declared: TableDeclaration) -> None:
        self.declared = declared
        self.run: TableRun | None = None
        self.offsets: tuple[int, ...] = ()
        self.not_before = 0.0
        self.backoff = Backoff(Random(declared.topic_id), first_s=_PAUSE_S[0], most_s=_PAUSE_S[1])

    @property
    def has_more(self) -> bool:
        """True if the next round is due immediately."""
        return self.run is not None and self.run.has_more


class DeclaredTables:
    """The declared tables of the cluster at `path`, or those of `topics` alone. With `tail`, tables
    that are followed have what is acknowledged in object WALs too. Work items go to `runner`, or to
    threads of this process; `engine` runs the MERGE of tables by upsert. Progress is of the table
    that is worked on. `written_by` names the run in the tables' histories.
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
        self._leases = TableLeases.open(path, lease_s=lease_s)
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
        self._check_named(catalog)
        for topic_id, declared in self._declared(catalog, on_table).items():
            topic = catalog.topic(declared.topic)
            known = catalog.state.tables.get(topic_id, TableState())
            lag = lag_of(catalog.state, topic, known.offsets)
            if all_of_them or is_due(declared, lag, self._clock.now_ms()):
                self._catch_up_one(catalog, declared, on_table, dry_run=dry_run)

    def _catch_up_one(
        self, catalog: Catalog, declared: TableDeclaration, on_table: OnOutcome, *, dry_run: bool
    ) -> None:
        run: TableRun | None = None
        error: LakeheadError | None = None
        try:
            check_declared_place(catalog, declared)
            with self._lease(declared, needed=not dry_run), self._reported(declared):
                run = self._open_run(declared, dry_run=dry_run)
                run.catch_up(catalog)
            if not dry_run:
                self._publisher.take(declared)
        except BaseException as caught:  # noqa: BLE001 - one table never stops the others
            error = as_error(caught, f"table of topic {declared.topic}")
        on_table(self._outcome(catalog, declared, run, error))

    def maintain_files(self, on_files: OnMaintained, *, dry_run: bool = False) -> None:
        """Run OPTIMIZE and VACUUM where they are due, or with `dry_run` report what is due."""
        for target in targets(self._leases.catalog(), self._topics):
            hold = partial(self._hold, target.topic_id)
            for result in maintain_files(target, hold, dry_run=dry_run):
                on_files(result)

    def replay(self, topic: str, *, dry_run: bool = False) -> ReplayResult:
        """Bring the dead letters of a topic's table that can be rows now into it.

        Raises UnknownTopic, SettingsError, TableTaken, and as `replay_dead_letters`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, topic)
        settings = self._settings(declared, dry_run=dry_run)
        guard = _Guard(self._leases, declared.topic_id)
        with self._lease(declared, needed=not dry_run):
            return replay_dead_letters(settings, store_reader(self._path), catalog, guard)

    def begin(self, topic: str, *, at: Beginning) -> MaterializeResult:
        """Have a topic's table begin there, also if it has newer records already.

        Raises UnknownTopic, SettingsError, TableTaken, and as `begin_at`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, topic)
        settings = replace(self._settings(declared), commit_bytes=ROUND_BYTES)
        guard = _Guard(self._leases, declared.topic_id)
        with self._lease(declared, needed=True):
            return begin_at(settings, store_reader(self._path), catalog, guard, at=at)

    def rebuild(
        self,
        topic: str,
        *,
        without_history: bool = False,
        dry_run: bool = False,
        on_progress: Progress = lambda _done, _total: None,
    ) -> RebuildResult:
        """Rebuild a topic's table by its present declaration.

        Raises UnknownTopic, SettingsError, TableTaken, and as `rebuild_table`.
        """
        catalog = self._leases.catalog()
        declared = self._one(catalog, topic)
        settings = self._settings(declared, dry_run=dry_run)
        guard = _Guard(self._leases, declared.topic_id)
        with self._lease(declared, needed=not dry_run):
            return rebuild_table(
                settings,
                store_reader(self._path),
                catalog,
                guard,
                without_history=without_history,
                on_progress=on_progress,
            )

    def _lease(self, declared: TableDeclaration, *, needed: bool) -> AbstractContextManager[None]:
        return self._hold(declared.topic_id) if needed else nullcontext()

    def _hold(self, topic_id: str) -> AbstractContextManager[None]:
        return self._leases.held(topic_id, wait_s=self._wait_s)

    def _one(self, catalog: Catalog, topic: str) -> TableDeclaration:
        catalog.topic(topic)
        declared = declared_tables(catalog.state, [topic]).get(topic)
        if isinstance(declared, SettingsError):
            raise declared
        if declared is None:
            raise _declares_none(topic)
        check_declared_place(catalog, declared)
        return declared

    # --------------------------------------------------------------------------------- for ever

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
        self._check_named(self._leases.catalog())
        with (
            _files_maintained(self._leases, self._topics, on_files, every_s=files_every_s),
            ThreadPoolExecutor(self._workers, thread_name_prefix="table") as pool,
        ):
            while not stopped.is_set():
                self._leases.check_alive()
                try:
                    catalog, reader = self._look()
                except StoreUnavailable as error:
                    self._report_error(on_table, "metadata", error)
                    stopped.wait(_PAUSE_S[0])
                    continue
                due = self._take_what_is_due(catalog, on_table)
                for outcome in pool.map(partial(self._turn, catalog, reader), due):
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
        for topic in declared_tables(catalog.state, self._topics):
            yield from catalog.topic(topic).partitions

    def _take_what_is_due(self, catalog: Catalog, on_table: OnOutcome) -> list[_Kept]:
        declarations = self._declared(catalog, on_table)
        for topic_id in self._kept.keys() - declarations.keys():
            del self._kept[topic_id]
            self._leases.release(topic_id)
        due = []
        for topic_id, declared in declarations.items():
            kept = self._kept.get(topic_id)
            if kept is None or kept.declared != declared:
                kept = self._kept[topic_id] = _Kept(declared)
            lag = lag_of(catalog.state, catalog.topic(declared.topic), kept.offsets)
            is_time = kept.not_before <= self._clock.monotonic()
            if is_time and is_due(declared, lag, self._clock.now_ms()):
                due.append(kept)
        return due

    def _turn(self, catalog: Catalog, reader: ObjectReader, kept: _Kept) -> TableOutcome:
        """One round of a table; the next is not before a pause if there was nothing to do, or if it
        failed.
        """
        declared = kept.declared
        is_first = kept.run is None
        before = MaterializeResult() if kept.run is None else kept.run.result
        error: LakeheadError | None = None
        try:
            check_declared_place(catalog, declared)
            self._leases.keep(declared.topic_id)
            with self._reported(declared):
                kept.run = kept.run or self._open_run(declared)
                self._round(catalog, reader, kept.run)
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

    def _round(self, catalog: Catalog, reader: ObjectReader, run: TableRun) -> None:
        try:
            run.catch_up(catalog, rounds_max=1, reader=reader)
        except ObjectNotFound:
            if self._snapshots is None:
                raise
            # A WAL object of the tail was uploaded meanwhile: the next look finds it elsewhere.

    @contextmanager
    def _reported(self, declared: TableDeclaration) -> Iterator[None]:
        """Have the cluster know, by the lease, why this turn at a table failed, if it does."""
        try:
            yield
        except BaseException as caught:
            problem = as_error(caught, f"table of topic {declared.topic}")
            self._leases.report_problem(declared.topic_id, str(problem))
            if problem is caught:
                raise
            raise problem from caught
        self._leases.report_problem(declared.topic_id, "")

    def _poll_s(self) -> float:
        """A tenth of the freshness that is wanted most."""
        wanted = [kept.declared.freshness_ms / 10_000 for kept in self._kept.values()]
        least, most = _POLL_S
        return min(max(min(wanted, default=most), least), most)

    # ---------------------------------------------------------------------------------- of both

    def _declared(self, catalog: Catalog, on_table: OnOutcome) -> dict[str, TableDeclaration]:
        found = {}
        for topic, declared in declared_tables(catalog.state, self._topics).items():
            if isinstance(declared, SettingsError):
                self._report_error(on_table, topic, declared)
            else:
                found[declared.topic_id] = declared
        return found

    def _report_error(self, on_table: OnOutcome, topic: str, error: LakeheadError) -> None:
        """Report an error of a declaration, or of all of them, once while it lasts."""
        if self._troubles.get(topic) != str(error):
            self._troubles[topic] = str(error)
            result, lag = MaterializeResult(), Lag()
            on_table(TableOutcome(topic=topic, table="", result=result, lag=lag, error=error))

    def _check_named(self, catalog: Catalog) -> None:
        declared = declared_tables(catalog.state, self._topics)
        for topic in self._topics:
            catalog.topic(topic)
            if topic not in declared:
                raise _declares_none(topic)

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

    def _open_run(self, declared: TableDeclaration, *, dry_run: bool = False) -> TableRun:
        settings = self._settings(declared, dry_run=dry_run)
        guard = _Guard(self._leases, declared.topic_id)
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
            topic=declared.topic,
            table=declared.uri(self._path),
            result=MaterializeResult() if run is None else run.result,
            lag=Lag() if topic is None else lag_of(catalog.state, topic, offsets),
            error=error,
        )
