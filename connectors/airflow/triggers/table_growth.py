"""Tells what came into a topic's table: what a watcher of an asset leaves to the triggerer.

Each commit says in the table's history what it brought. The version up to which that was told is
kept in Airflow's own store of the asset's state, so what came while no triggerer ran is told when
one does. It is written at the look after the one that told, when Airflow has long stored the event:
a version may be told twice when a triggerer dies in between, and none is left out.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow.triggers.base import TriggerEvent

from connectors.airflow.triggers.cluster_looks import ClusterLook, in_environment
from connectors.airflow.triggers.watcher_trigger import WatcherTrigger
from connectors.airflow.untold_commits import event_extras

if TYPE_CHECKING:
    from lake.tables.table_history import TableCommit
    from storage.metadata.state import ClusterState, TableState
    from storage.metadata.table_declaration import TableDeclaration


class _Position(NamedTuple):
    """The table and the version up to which it was told."""

    table: str
    version: int


class TableGrowthTrigger(WatcherTrigger):
    """Fires whenever at least so many more records came into a topic's table, with what
    `connectors.airflow.untold_commits.event_extras` says. A topic that does not exist or declares
    no table is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: so many more, as offsets, or as rows where a commit has more of them.
    :param poll_interval: seconds between two looks.
    """

    kind = "version"

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at each look that sees enough. What the table has when it is first watched is not
        told, unless its topic was made since.
        """
        from airflow.sdk.exceptions import AirflowFailException

        from storage.errors import LakeheadError

        told = await self._kept()
        is_kept, is_new, trouble = True, False, ""
        seen: TableState | None = None
        async for look in shared_stream:
            if not is_kept and told is not None:
                await self._keep(told)
                is_kept = True
            try:
                found = self._found(look)
                if found is None:
                    is_new = True
                    continue
                declared, known = found
                if known == seen and not known.until_ms:
                    continue  # whatever writes the table takes its lease before, and returns it
                look_at = partial(_commits, declared, told)
                now, commits = await in_environment(self.lakehead_conn_id, look_at)
            except (LakeheadError, AirflowFailException) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self.log.error(trouble)  # noqa: TRY400 - one line says it
                continue
            seen, trouble = known, ""
            if told is None and not is_new:
                told, is_kept = now, False
                continue
            if sum(map(_size, commits)) >= self.records:
                for extra in event_extras(self.topic, commits, told_below=now.version + 1):
                    yield TriggerEvent(extra)  # type: ignore[no-untyped-call]
                told, is_kept = now, False

    def _found(self, look: ClusterLook) -> "tuple[TableDeclaration, TableState] | None":
        """The table's declaration and what the metadata know of it; None if there is none. Raises
        the error of the look, and SettingsError for a declaration that makes no sense.
        """
        from storage.metadata.state import TableState
        from storage.metadata.table_declaration import TableDeclaration, is_declared

        if look.state is None:
            assert look.error is not None
            raise look.error
        state: ClusterState = look.state
        topic = state.topics.get(self.topic)
        if topic is None or not is_declared(topic):
            return None
        return TableDeclaration.of(topic), state.tables.get(topic.topic_id, TableState())

    async def _kept(self) -> _Position | None:
        """How far it was told; None where that is not known."""
        kept = await self._load()
        if kept is None:
            return None
        return _Position(str(kept["table"]), int(kept["version"]))

    async def _keep(self, told: _Position) -> None:
        await self._store(told._asdict())


def _commits(
    declared: "TableDeclaration", told: _Position | None, path: str
) -> "tuple[_Position, list[TableCommit]]":
    """What a table is at now, and the commits that came since. Raises TableUnavailable."""
    from lake.tables.delta_table import open_table
    from lake.tables.table_history import commits_since

    uri = declared.uri(path)
    table = open_table(uri)
    if table is None:
        return _Position(uri, -1), []
    # A table of another place, or one that was made again, is told from its beginning.
    is_same = told is not None and told.table == uri and told.version <= table.version
    since = told.version if told is not None and is_same else -1
    return _Position(uri, table.version), commits_since(table, since)


def _size(commit: "TableCommit") -> int:
    records = sum(end - first for first, end in commit.change.offsets.values())
    return max(records, commit.change.rows)
