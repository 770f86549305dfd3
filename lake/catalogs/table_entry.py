"""The entry of a table in a catalog: its name, its place, its columns, and the topic that it shows.

An entry says where the table is. The table's own log stays the truth: an engine that finds the
table by the entry reads schema, files and versions there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.tables.ddl import type_name
from lakehead.lake.tables.delta_table import location, open_table
from lakehead.storage.errors import LakeheadError, SettingsError

TOPIC = "lakehead.topic"
TOPIC_ID = "lakehead.topic.id"
TABLE = "lakehead.table"
FRESHNESS = "lakehead.freshness.ms"


class CatalogUnavailable(LakeheadError):
    """A catalog does not respond, or refuses. The table is not affected, and the entry is written
    by a later try. The message says why.
    """


class CatalogRejected(CatalogUnavailable):
    """A catalog does not accept an entry as it is, or one is there that is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryColumn:
    """A column, with its Arrow type and its place in the table from 0. `partition_index` counts the
    partition columns; None for others.
    """

    name: str
    type: Any
    position: int
    partition_index: int | None

    @property
    def catalog_string(self) -> str:
        """The type as Spark's `catalogString` and Hive have it: `array<struct<sku:string,n:int>>`.
        Names of fields stay as they are.
        """
        return _catalog_string(self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """An entry. `name` has the parts that the catalog takes, between dots; `location` is the URI of
    the table's root, without the options that `uri` may have; `owner` and `comment` may be empty.
    """

    name: str
    uri: str
    location: str
    columns: tuple[EntryColumn, ...]
    owner: str
    comment: str
    properties: Mapping[str, str]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the name."""
        return tuple(self.name.split("."))

    def is_of(self, properties: Mapping[str, str], place: str) -> bool:
        """Return whether an entry that a catalog has, by its properties and place, is of this
        table: of the same topic, or of an earlier topic with the same table.
        """
        if self.is_same_table(properties):
            return True
        return TOPIC in properties and place.rstrip("/") == self.location.rstrip("/")

    def is_same_table(self, properties: Mapping[str, str]) -> bool:
        """Return whether an entry with these properties is of this table under this name or an
        earlier one: of the same topic, and of its table of this name. Entries from before topics
        had several tables name none.
        """
        return (
            properties.get(TOPIC_ID) == self.properties[TOPIC_ID]
            and properties.get(TABLE, self.properties[TABLE]) == self.properties[TABLE]
        )

    def refuse_others(self, properties: Mapping[str, str], place: str) -> None:
        """Raise CatalogRejected for an entry that is not of this table."""
        if not self.is_of(properties, place):
            raise CatalogRejected(
                f"the catalog has {self.name} already, at {place or 'an unknown place'}: set "
                "another lakehead.table.catalog.name"
            )


class TableCatalog(Protocol):
    """A catalog that takes entries of tables."""

    def put(self, entry: TableEntry) -> bool:
        """Make the entry, or bring the one of the table up to it; return whether the catalog was
        changed. Entries of the same topic by other names in the same schema are removed. May run
        twice at once, and be killed at any moment.

        Raises CatalogUnavailable, CatalogRejected, SettingsError.
        """
        ...


def entry_of(declared: TableDeclaration, uri: str) -> TableEntry:
    """Return the entry of a declared table at a URI, as its newest version is. Raises SettingsError
    if there is no table, TableUnavailable.
    """
    table = open_table(uri)
    if table is None:
        raise SettingsError(f"there is no Delta table at {uri}")
    partitions = table.partition_columns
    return TableEntry(
        name=declared.catalog_table,
        uri=uri,
        location=_place(uri),
        columns=tuple(
            EntryColumn(
                name=field.name,
                type=field.type,
                position=position,
                partition_index=partitions.index(field.name) if field.name in partitions else None,
            )
            for position, field in enumerate(table.schema)
        ),
        owner=declared.owner,
        comment=declared.comment,
        properties={
            TOPIC: declared.topic,
            TOPIC_ID: declared.topic_id,
            TABLE: declared.name,
            FRESHNESS: str(declared.freshness_ms),
        },
    )


def _catalog_string(kind: Any) -> str:
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        inner = ",".join(f"{field.name}:{_catalog_string(field.type)}" for field in fields)
        return f"struct<{inner}>"
    if pa.types.is_list(kind):
        return f"array<{_catalog_string(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_catalog_string(kind.key_type)},{_catalog_string(kind.item_type)}>"
    return type_name(kind).lower().replace(" ", "")


def _place(uri: str) -> str:
    place, options = location(uri)
    return Path(place).absolute().as_uri() if options is None else place.rstrip("/")
