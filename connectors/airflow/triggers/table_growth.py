"""Watches a topic's table for new records, as the trigger of an asset's watcher.

Each commit says in the table's history what it brought. The version up to which events were fired
is kept in Airflow's own store of the asset's state, so commits that come while no triggerer runs
get their event when one does. The version is written at the look after the event, when Airflow has
long stored it: an event may come twice if a triggerer dies in between, and none is left out.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow.triggers.base import TriggerEvent

from lakehead.connectors.airflow.asset_events import event_extras
from lakehead.connectors.airflow.triggers.cluster_looks import ClusterLook, in_environment
from lakehead.connectors.airflow.triggers.watcher_trigger import WatcherTrigger

if TYPE_CHECKING:
    from lakehead.lake.tables.table_history import TableCommit
    from lakehead.storage.metadata.state import ClusterState, TableState
    from lakehead.storage.metadata.table_declaration import TableDeclaration


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
        from airflow.sdk.exceptions import AirflowFailException

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
            except (LakeheadError, AirflowFailException) as error:
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
        from lakehead.storage.metadata.state import TableState
        from lakehead.storage.metadata.table_declaration import TableDeclaration, is_declared

        if look.state is None:
            assert look.error is not None
            raise look.error
        state: ClusterState = look.state
        topic = state.topics.get(self.topic)
        if topic is None or not is_declared(topic):
            return None
        return TableDeclaration.of(topic), state.tables.get(topic.topic_id, TableState())

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
