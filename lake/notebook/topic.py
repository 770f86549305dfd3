"""A topic in a notebook: its first and newest records as rows, its table."""

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa

from lakehead.lake.cluster_tables import catalog_tables
from lakehead.lake.decode.columns import COLUMNS
from lakehead.lake.notebook.card import card, size
from lakehead.lake.notebook.records import first_records, last_records
from lakehead.lake.source.decoded_rows import decoded_rows, decoded_schema
from lakehead.lake.source.options import batch_options
from lakehead.lake.store_reader import store_reader
from lakehead.lake.topic_scan import Scan, scan
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.table_declaration import TableDeclaration, is_declared

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
        return self._decoded(lambda names: first_records(self.path, self.name, rows, names), decode)

    def tail(self, rows: int = 5, *, decode: Decode = "declared") -> Any:
        """Return the newest rows; as `head`."""
        return self._decoded(lambda names: last_records(self.path, self.name, rows, names), decode)

    def scan(self, **options: Any) -> Scan:
        """Return all records as Arrow batches: `lakehead.scan`, with its options."""
        return scan(self.path, self.name, **options)

    @property
    def table(self) -> Any:
        """The topic's Delta table, as deltalake has it (`.to_pandas()`, `.to_pyarrow_dataset()`).

        Raises SettingsError where none is declared, or none has been made yet.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if not is_declared(self._state()):
            raise SettingsError(
                f"topic {self.name} declares no table: set lakehead.table.enable=true"
            )
        uri = TableDeclaration.of(self._state()).uri(self.path)
        try:
            return DeltaTable(uri)
        except TableNotFoundError:
            raise SettingsError(
                f"topic {self.name} has no table at {uri} yet: run lakehead materialize {self.name}"
            ) from None

    @property
    def partitions(self) -> Any:
        """Offsets, sizes and newest timestamps of the partitions."""
        rows = catalog_tables(self.path).partitions.to_pandas()
        return rows[rows["topic"] == self.name].drop(columns=["topic"]).reset_index(drop=True)

    @property
    def configs(self) -> dict[str, str]:
        """What is set for the topic."""
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
        facts = {
            "partitions": len(partitions),
            "offsets": int((partitions["end_offset"] - partitions["start_offset"]).sum()),
            "size": size(int(partitions["bytes"].sum())),
            "values": declared.value_format,
            "table": declared.uri(self.path) if is_declared(self._state()) else "none",
        }
        try:
            rows = self.tail(_SHOWN)
        except LakeheadError as error:
            # One bad value must not hide what else there is to see.
            facts["shown as bytes"] = str(error)
            rows = self.tail(_SHOWN, decode="none")
        return card(f"Topic {self.name}", facts, rows)
