"""A topic in a notebook: its first and newest records as rows, its table, and its card."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Literal

import pyarrow as pa

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.cluster_tables import catalog_tables
from lakehead.lake.committed import committed_now
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.decode.columns import COLUMNS, arrow_schema
from lakehead.lake.jobs.table_due import chosen_tables, declared_tables, one_table
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.source.decoded_rows import decoded_rows, decoded_schema
from lakehead.lake.source.options import batch_options
from lakehead.lake.store_reader import ObjectReader, store_reader
from lakehead.lake.tables.value_sample import records_between
from lakehead.lake.topic_scan import Scan, scan
from lakehead.storage.errors import LakeheadError, SettingsError

_ROWS_MAX = 60


def card(title: str, facts: Mapping[str, object], frame: Any) -> str:
    """Return HTML of a title, facts by name and a DataFrame, everything escaped."""
    line = " · ".join(f"{escape(name)} {escape(str(fact))}" for name, fact in facts.items())
    table = frame.to_html(index=False, max_rows=_ROWS_MAX, border=0, na_rep="")
    return f"<div><b>{escape(title)}</b><br/>{line}{table}</div>"


def _size(count: int) -> str:
    """Return bytes for people."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}" if units[0] != "B" else f"{count} B"


_WIDER = 8


def _first_records(path: str, topic: str, count: int, columns: Sequence[str]) -> Any:
    """Return the oldest `count` records by their timestamps, as far as these rise in each
    partition: a table. Raises UnknownTopic, and what reading objects raises.
    """
    reader, logs = _logs(path, topic)
    tables = [_first(reader, log, count, columns) for log in logs]
    return _by_time(tables, columns).slice(0, count)


def _last_records(path: str, topic: str, count: int, columns: Sequence[str]) -> Any:
    """Return the newest `count` records; as `_first_records`."""
    reader, logs = _logs(path, topic)
    rows = _by_time([_last(reader, log, count, columns) for log in logs], columns)
    return rows.slice(max(rows.num_rows - count, 0))


def _logs(path: str, topic: str) -> tuple[ObjectReader, Sequence[PartitionLog]]:
    snapshot = Snapshots(store_reader(path)).now()
    return snapshot, committed_now(snapshot, snapshot.catalog, topic)


def _first(reader: ObjectReader, log: PartitionLog, count: int, columns: Sequence[str]) -> Any:
    found: list[Any] = []
    for batch in records_between(reader, log, log.start_offset, log.end_offset, columns):
        found.append(batch)
        if sum(one.num_rows for one in found) >= count:
            break
    return _table(found, columns).slice(0, count)


def _last(reader: ObjectReader, log: PartitionLog, count: int, columns: Sequence[str]) -> Any:
    """Look further back where compaction and markers of transactions have left gaps."""
    width = count
    while True:
        start = max(log.end_offset - width, log.start_offset)
        rows = _table(records_between(reader, log, start, log.end_offset, columns), columns)
        if rows.num_rows >= count or start == log.start_offset:
            return rows.slice(max(rows.num_rows - count, 0))
        width *= _WIDER


def _table(batches: Iterable[Any], columns: Sequence[str]) -> Any:
    return pa.Table.from_batches(batches, schema=arrow_schema(columns))


def _by_time(tables: list[Any], columns: Sequence[str]) -> Any:
    rows = pa.concat_tables([_table([], columns), *tables])
    return rows.sort_by([(name, "ascending") for name in ("timestamp", "partition", "offset")])


Decode = Literal["declared", "json", "none"]

_SHOWN = 5
_Rows = Callable[[list[str]], Any]


class Topic:
    """A topic of the cluster at `path`. Raises UnknownTopic.

    `decode` is how values become columns: `declared` as the topic says (bytes where it says
    nothing), `json`, or `none`. Frames are pandas'.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self._state()

    def head(self, rows: int = 5, *, decode: Decode = "declared") -> Any:
        """Return the oldest rows. Raises UndecodableValue, and what reading objects raises."""
        return self._decoded(
            lambda names: _first_records(self.path, self.name, rows, names), decode
        )

    def tail(self, rows: int = 5, *, decode: Decode = "declared") -> Any:
        """Return the newest rows; as `head`."""
        return self._decoded(lambda names: _last_records(self.path, self.name, rows, names), decode)

    def scan(self, **options: Any) -> Scan:
        """Return all records as Arrow batches: `lakehead.scan`, with its options."""
        return scan(self.path, self.name, **options)

    @property
    def table(self) -> Any:
        """The topic's Delta table, as deltalake has it (`.to_pandas()`, `.to_pyarrow_dataset()`).

        Raises SettingsError where none is declared, where several are (see `table_of`), or none has
        been made yet.
        """
        return self._delta_table(self.name)

    def table_of(self, name: str) -> Any:
        """Return one of several Delta tables of the topic, by its name; as `table`."""
        return self._delta_table(f"{self.name}/{name}")

    def _delta_table(self, key: str) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        catalog = store_reader(self.path).open_catalog()
        chosen_tables(catalog, [key])
        declared = one_table(catalog.state, key)
        assert declared is not None, "it was chosen"
        uri = declared.uri(self.path)
        try:
            return DeltaTable(uri)
        except TableNotFoundError:
            raise SettingsError(
                f"topic {self.name} has no table at {uri} yet: run lakehead materialize {key}"
            ) from None

    @property
    def partitions(self) -> Any:
        """Offsets, sizes and newest timestamps of the partitions."""
        rows = catalog_tables(self.path).partitions.to_pandas()
        return rows[rows["topic"] == self.name].drop(columns=["topic"]).reset_index(drop=True)

    @property
    def configs(self) -> dict[str, str]:
        """The topic's configs that are set."""
        return dict(self._state().configs)

    def _decoded(self, read: _Rows, decode: Decode) -> Any:
        if decode not in ("declared", "json", "none"):
            raise SettingsError(f"decode is declared, json or none, not {decode!r}")
        options = batch_options({"path": self.path, "subscribe": self.name, "decode": decode})
        schema = None if options.decoding is None else decoded_schema(options)
        if options.decoding is None or schema is None:
            return read(list(COLUMNS)).to_pandas()
        form = decoded_rows(options, options.decoding, schema)
        assert form is not None, "its schema is known"
        names = list(dict.fromkeys((*form.record_columns, "timestamp")))
        make = form.maker()
        rows = read(names).combine_chunks()
        made = [make(batch) for batch in rows.to_batches()]
        return pa.Table.from_batches(made, schema=form.schema).to_pandas()

    def _state(self) -> Any:
        return store_reader(self.path).open_catalog().topic(self.name)

    def __repr__(self) -> str:
        return f"Topic({self.name!r} of {self.path!r})"

    def _repr_html_(self) -> str:
        partitions = self.partitions
        declared = TableDeclaration.of(self._state())
        each = declared_tables(store_reader(self.path).open_catalog().state, [self.name]).values()
        tables = [one for one in each if isinstance(one, TableDeclaration)]
        facts = {
            "partitions": len(partitions),
            "offsets": int((partitions["end_offset"] - partitions["start_offset"]).sum()),
            "size": _size(int(partitions["bytes"].sum())),
            "values": declared.value_format,
            "table": ", ".join(one.uri(self.path) for one in tables) or "none",
        }
        try:
            rows = self.tail(_SHOWN)
        except LakeheadError as error:
            # One bad value must not hide what else there is to see.
            facts["shown as bytes"] = str(error)
            rows = self.tail(_SHOWN, decode="none")
        return card(f"Topic {self.name}", facts, rows)
