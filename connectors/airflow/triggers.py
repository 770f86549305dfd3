"""Triggers of deferred sensors and of assets' watchers, which the triggerer runs.

All triggers of a connection share one poll of its cluster's metadata, which is one small request to
the store while nothing has changed, and none to a broker.

A watcher's trigger fires whenever a topic, or its table, has grown by enough. The offsets, or the
version of the table, up to which it has fired are kept in Airflow's own store of the asset's state,
so records that come while no triggerer runs get their event when one does. They are written at the
poll after the event, when Airflow has long stored it: an event may come twice if a triggerer dies
in between, and none is left out. A table's events follow from its history, where each commit notes
the offsets and rows that it brought.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lakehead.connectors.airflow.asset_events import event_extras, growth
from lakehead.connectors.airflow.conditions import (
    Condition,
    decoded,
    encoded,
    end_offsets,
    of_its_topic,
)
from lakehead.connectors.airflow.features import STATE_STORES

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import AirflowFailException

    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.tables.table_history import TableCommit
    from lakehead.storage.errors import LakeheadError
    from lakehead.storage.metadata.log_reader import LogReader
    from lakehead.storage.metadata.state import MetadataImage, TableState
    from lakehead.storage.object_store import ObjectStore


_T = TypeVar("_T")
_log = structlog.get_logger("connectors.airflow")

TROUBLE_S = 30.0
"""The longest pause between looks at a store that cannot be reached."""


class ClusterLook(NamedTuple):
    """The result of a look: the newest state and the time (milliseconds since 1970), or the error
    for which there is none until the operator acts.
    """

    state: "MetadataImage | None"
    at_ms: int
    error: "LakeheadError | AirflowFailException | None" = None


async def _cluster_looks(
    lakehead_conn_id: str, pause_s: float
) -> AsyncGenerator[ClusterLook, None]:
    """Yield a look at once, and then one after each pause, for ever. If the store cannot be
    reached, or Airflow does not return the connection, the request is repeated with longer and
    longer pauses, and makes no look, unless the store refuses it.
    """
    from airflow.providers.common.compat.sdk import AirflowFailException

    from lakehead.connectors.airflow.hooks import ConnectionUnavailable
    from lakehead.storage.backoff import Backoff
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.errors import LakeheadError, StoreRefused, StoreUnavailable

    clock, most_s = SystemClock(), max(TROUBLE_S, pause_s)
    backoff = Backoff(random.Random(), first_s=min(2 * pause_s, most_s), most_s=most_s)
    watched: _Watched | None = None
    try:
        while True:
            try:
                if watched is None:
                    watched = await _Watched.open(lakehead_conn_id)
                state = await watched.newest()
            except (StoreUnavailable, ConnectionUnavailable) as error:
                if isinstance(error, StoreRefused):
                    yield ClusterLook(None, clock.now_ms(), error)
                trouble_s = backoff.next_s()
                _log.warning(
                    "store_unavailable",
                    connection=lakehead_conn_id,
                    error=str(error),
                    again_in_s=trouble_s,
                )
                await asyncio.sleep(trouble_s)
                continue
            except (LakeheadError, AirflowFailException) as error:
                yield ClusterLook(None, clock.now_ms(), error)
                await asyncio.sleep(most_s)
                continue
            backoff.reset()
            yield ClusterLook(state, clock.now_ms())
            await asyncio.sleep(pause_s)
    finally:
        if watched is not None:
            await watched.close()


class _Watched:
    """A cluster's store and what is known of its log. Reads only."""

    def __init__(self, store: "ObjectStore", reader: "LogReader") -> None:
        self._store = store
        self._reader = reader

    @classmethod
    async def open(cls, lakehead_conn_id: str) -> "_Watched":
        """Raises SettingsError when there is no cluster, StoreUnavailable, AirflowFailException,
        ConnectionUnavailable.
        """
        from lakehead.connectors.airflow.hooks import LakeheadHook
        from lakehead.storage.errors import SettingsError
        from lakehead.storage.metadata.log_reader import LogReader
        from lakehead.storage.object_store import open_retrying_store

        hook = LakeheadHook(lakehead_conn_id)
        # Asking Airflow for a connection blocks, and must not do so on the triggerer's loop.
        path, _ = await asyncio.to_thread(lambda: (hook.path, hook.storage_settings))
        # The environment is the process's: one connection's at a time. A store keeps what it found
        # there when it was opened, and its client when it was first used.
        async with _environments:
            with hook.environment():
                store = open_retrying_store(path, rng=random.SystemRandom())
        reader = LogReader(store)
        try:
            async with _environments:
                with hook.environment():
                    await reader.load()
            await reader.catch_up()
            if not reader.state.cluster_id:
                raise SettingsError(
                    f"connection {lakehead_conn_id}: there is no cluster in {store.uri}"
                )
        except BaseException:
            await store.close()
            raise
        return cls(store, reader)

    async def newest(self) -> "MetadataImage":
        await self._reader.catch_up()
        return self._reader.state

    async def close(self) -> None:
        await self._store.close()


async def in_environment(lakehead_conn_id: str, work: Callable[[str], _T]) -> _T:
    """Return what `work` returns of the cluster's path, in a thread, with the connection's storage
    settings in the environment. Raises what it raises, AirflowFailException and
    ConnectionUnavailable.
    """
    from lakehead.connectors.airflow.hooks import LakeheadHook

    hook = LakeheadHook(lakehead_conn_id)
    path, _ = await asyncio.to_thread(lambda: (hook.path, hook.storage_settings))
    async with _environments:
        with hook.environment():
            return await asyncio.to_thread(work, path)


_environments = asyncio.Lock()


class ClusterTrigger(BaseEventTrigger):
    """Fires by looks at a cluster; which ones, `filter_shared_stream` says.

    :param lakehead_conn_id: the connection.
    :param poll_interval: seconds between two looks.
    """

    def __init__(self, lakehead_conn_id: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lakehead_conn_id = lakehead_conn_id
        self.poll_interval = poll_interval

    def shared_stream_key(self) -> Hashable | None:
        """Triggers of the same connection and interval share their looks."""
        return ("lakehead", self.lakehead_conn_id, self.poll_interval)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[ClusterLook, None]:
        """Yield looks at the cluster."""
        every = _cluster_looks(kwargs["lakehead_conn_id"], kwargs["poll_interval"])
        async with aclosing(every) as looks:
            async for look in looks:
                yield look

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone, where looks are not shared."""
        _, kwargs = self.serialize()
        async with aclosing(self.open_shared_stream(kwargs)) as looks:
            async for event in self.filter_shared_stream(looks):
                yield event


class ConditionTrigger(ClusterTrigger):
    """Fires once: with `{"found": …}` when a condition holds, or with `{"error": …, "is_final": …}`
    when it cannot hold until the operator acts.

    All triggers of one connection and interval share one poll of the metadata log.

    :param lakehead_conn_id: the connection.
    :param condition: what `lakehead.connectors.airflow.conditions.encoded` makes of a condition.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self, lakehead_conn_id: str, condition: dict[str, Any], poll_interval: float = 5.0
    ) -> None:
        super().__init__(lakehead_conn_id, poll_interval)
        self.condition: Condition = decoded(condition)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            "lakehead.connectors.airflow.triggers.ConditionTrigger",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "condition": encoded(self.condition),
                "poll_interval": self.poll_interval,
            },
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at the first look that decides. A condition without a topic's id, since the store
        did not respond to its sensor, is for the topic that has the name at the first look.
        """
        logged, condition = "", self.condition
        async for look in shared_stream:
            condition, event, text = _judged(condition, look)
            if text != logged:
                self.log.info(text)
                logged = text
            if event is not None:
                yield event
                return


def _judged(condition: Condition, look: ClusterLook) -> tuple[Condition, TriggerEvent | None, str]:
    """Return the condition with its topic, the event to fire, if there is one, and the text for the
    log.
    """
    from airflow.providers.common.compat.sdk import AirflowFailException

    from lakehead.connectors.airflow.errors import airflow_error
    from lakehead.storage.errors import LakeheadError

    error: Exception | None = look.error
    if look.state is not None:
        try:
            condition = of_its_topic(condition, look.state)
            verdict = condition.verdict(look.state, look.at_ms)
        except LakeheadError as caught:
            error = caught
        else:
            event = _event({"found": verdict.found}) if verdict.is_met else None
            return condition, event, verdict.text
    assert error is not None
    failure = error if isinstance(error, AirflowFailException) else airflow_error(error)
    is_final = isinstance(failure, AirflowFailException)
    return condition, _event({"error": str(failure), "is_final": is_final}), str(failure)


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class WatcherTrigger(ClusterTrigger):
    """Watches a topic for `records` more records, with a look every `poll_interval` seconds."""

    kind: str
    """The first part of the key under which the store has how far it has fired."""

    def __init__(
        self,
        lakehead_conn_id: str,
        topic: str,
        records: int = 1,
        poll_interval: float = 10.0,
    ) -> None:
        super().__init__(lakehead_conn_id, poll_interval)
        if records < 1:
            raise ValueError(f"records is {records}: give a number from 1")
        if not STATE_STORES.is_there:
            self.asset_state_store = None
        self.topic = topic
        self.records = records

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "topic": self.topic,
                "records": self.records,
                "poll_interval": self.poll_interval,
            },
        )

    async def _load(self) -> dict[str, Any] | None:
        """Return what was kept; None where nothing was, or there is no store."""
        kept: Any = None
        if not STATE_STORES.is_there:
            self.log.info(STATE_STORES.without)
        if self.asset_state_store is not None:
            try:
                kept = await self.asset_state_store.aget(self._key)
            except ValueError:  # several assets have this watcher: whose store it were is open
                self.asset_state_store = None
        return kept if isinstance(kept, dict) else None

    async def _store(self, kept: dict[str, Any]) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(self._key, kept)

    @property
    def _key(self) -> str:
        return f"{self.kind}_{self.records}"


class GrowthTrigger(WatcherTrigger):
    """Fires whenever a topic has at least `records` more records in objects, with
    the extra that `asset_events.growth` makes. A topic that does not exist is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: the least number of new records for an event.
    :param poll_interval: seconds between two looks.
    """

    kind = "offsets"

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at each look that sees enough new records. Without a store for the offsets, records
        that are there at the first look have no event.
        """
        topic_id, fired = await self._kept()
        is_kept, is_new, trouble = True, False, ""
        async for look in shared_stream:
            if look.state is None:
                if str(look.error) != trouble:
                    trouble = str(look.error)
                    self.log.error(trouble)
                continue
            trouble = ""
            if not is_kept:
                await self._keep(topic_id, fired)
                is_kept = True
            topic = look.state.topics.get(self.topic)
            if topic is None:
                is_new = True
                continue
            offsets = end_offsets(look.state, topic)
            ends = {str(partition): offset for partition, offset in enumerate(offsets)}
            if topic_id != topic.topic_id:
                # Records from before the watch have no event; all of a topic made since then do.
                fired = {} if topic_id or is_new else ends
                topic_id, is_kept = topic.topic_id, False
            found = growth(self.topic, fired, ends)
            if found["records"] >= self.records:
                yield TriggerEvent(found)  # type: ignore[no-untyped-call]
                fired, is_kept = ends, False

    async def _kept(self) -> tuple[str, dict[str, int]]:
        """The topic's id and the offsets up to which events were fired; nothing if not known."""
        kept = await self._load()
        if kept is None:
            return "", {}
        return str(kept["topic_id"]), dict(kept["offsets"])

    async def _keep(self, topic_id: str, fired: dict[str, int]) -> None:
        await self._store({"topic_id": topic_id, "offsets": fired})


class _Position(NamedTuple):
    """The place of a table, the version up to which events were fired (-1: there was no table), and
    the time of that version's commit (milliseconds): a table that was made again in the same place
    has other times.
    """

    table: str
    version: int
    at_ms: int


class TableGrowthTrigger(WatcherTrigger):
    """Fires whenever at least `records` new records came into a topic's table, with what
    `lakehead.connectors.airflow.asset_events.event_extras` says. A topic that does not exist or
    declares no table is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: the least number of new records for an event, as offsets, or as rows where a
        commit has more of them.
    :param poll_interval: seconds between two looks.
    """

    kind = "version"

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at each look that sees enough new records. Those that the table has when the watch
        begins have no event, unless the topic was made since.
        """
        from airflow.providers.common.compat.sdk import AirflowException

        from lakehead.storage.errors import LakeheadError

        fired = await self._kept()
        is_kept, is_new, trouble = True, False, ""
        seen: TableState | None = None
        async for look in shared_stream:
            if not is_kept and fired is not None:
                await self._keep(fired)
                is_kept = True
            try:
                found = self._found(look)
                if found is None:
                    is_new = True
                    continue
                declared, known = found
                if known == seen and not known.until_ms:
                    continue  # whatever writes the table takes its lease before, and returns it
                look_at = partial(_commits, declared, fired)
                now, commits = await in_environment(self.lakehead_conn_id, look_at)
            except (LakeheadError, AirflowException) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self.log.error(trouble)  # noqa: TRY400 - one line says it
                continue
            seen, trouble = known, ""
            if fired is None and not is_new:
                fired, is_kept = now, False
                continue
            if sum(map(_size, commits)) >= self.records:
                for extra in event_extras(self.topic, commits, told_below=now.version + 1):
                    yield TriggerEvent(extra)  # type: ignore[no-untyped-call]
                fired, is_kept = now, False

    def _found(self, look: ClusterLook) -> "tuple[TableDeclaration, TableState] | None":
        """The table's declaration and what the metadata know of it; None if there is none. Raises
        the error of the look, and SettingsError for a declaration that makes no sense.
        """
        from lakehead.lake.jobs.table_due import one_table
        from lakehead.storage.metadata.state import TableState

        if look.state is None:
            assert look.error is not None
            raise look.error
        state: MetadataImage = look.state
        declared = one_table(state, self.topic)
        if declared is None:
            return None
        return declared, state.tables.get(declared.topic_id, TableState())

    async def _kept(self) -> _Position | None:
        """The position up to which events were fired; None where that is not known."""
        kept = await self._load()
        if kept is None:
            return None
        return _Position(str(kept["table"]), int(kept["version"]), int(kept["at_ms"]))

    async def _keep(self, fired: _Position) -> None:
        await self._store(fired._asdict())


def _commits(
    declared: "TableDeclaration", fired: _Position | None, path: str
) -> "tuple[_Position, list[TableCommit]]":
    """A table's position now, and the commits since an earlier one. Raises TableUnavailable."""
    from lakehead.lake.tables.delta_table import open_table
    from lakehead.lake.tables.table_history import history_since

    uri = declared.uri(path)
    table = open_table(uri)
    if table is None:
        return _Position(uri, -1, 0), []
    # A table of another place, or one that was made again, has events from its beginning.
    known = fired if fired is not None and fired.table == uri else _Position(uri, -1, 0)
    history = history_since(table, known.version - 1)
    is_same = history.at_ms.get(known.version, known.at_ms) == known.at_ms
    if table.version < known.version or not is_same:
        known = _Position(uri, -1, 0)
        history = history_since(table, -1)
    commits = [one for one in history.commits if one.version > known.version]
    return _Position(uri, table.version, history.at_ms[table.version]), commits


def _size(commit: "TableCommit") -> int:
    records = sum(end - first for first, end in commit.change.offsets.values())
    return max(records, commit.change.rows)
