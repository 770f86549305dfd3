"""AWS Glue's Data Catalog: Delta tables as Athena, Redshift Spectrum and Spark on EMR find them.

Source: AWS Glue API (CreateTable, UpdateTable), and the parameters that Athena documents for Delta
tables (`table_type` or `spark.sql.sources.provider` is delta). The columns are for people, since
engines take the schema from Delta's log. Credentials are those of AWS' chain.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakehead.lake.catalogs.table_entry import (
    CatalogRejected,
    CatalogUnavailable,
    EntryColumn,
    TableEntry,
)
from lakehead.storage.errors import SettingsError

_COMMENT_CHARACTERS = 2048
_REFUSED = frozenset({"InvalidInputException", "ResourceNumberLimitExceededException"})
_OURS = ("Description", "Owner", "Parameters", "PartitionKeys", "StorageDescriptor", "TableType")


class GlueCatalog:
    """The catalog of an account in a region; `catalog_id` is another account's, `endpoint` another
    service. Names of tables have two parts: database, table.
    """

    def __init__(
        self, name: str, *, region: str = "", catalog_id: str = "", endpoint: str = ""
    ) -> None:
        import boto3

        self._name = name
        self._place = {"CatalogId": catalog_id} if catalog_id else {}
        try:
            # A session of its own: the default one keeps the first credentials of the process.
            self._glue: Any = boto3.Session().client(
                "glue", region_name=region or None, endpoint_url=endpoint or None
            )
        except (BotoCoreError, ValueError) as error:
            raise SettingsError(f"catalog {name}: {error}") from None

    def put(self, entry: TableEntry) -> bool:
        """See `TableCatalog.put`."""
        if len(entry.parts) != 2:
            raise SettingsError(f"{entry.name}: a name in Glue has two parts, database.table")
        if entry.name != entry.name.lower():
            raise SettingsError(f"{entry.name}: Glue has names in small letters only")
        try:
            return self._put(entry)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            kind = CatalogRejected if code in _REFUSED else CatalogUnavailable
            raise kind(f"catalog {self._name}: {error}") from None
        except BotoCoreError as error:
            raise CatalogUnavailable(f"catalog {self._name}: {error}") from None

    def _put(self, entry: TableEntry) -> bool:
        database, table = entry.parts
        where = {"DatabaseName": database, **self._place}
        missing = self._glue.exceptions.EntityNotFoundException
        wanted = _input(entry)
        try:
            known = self._glue.get_table(Name=table, **where)["Table"]
        except missing:
            self._make_database(database)
            try:
                self._glue.create_table(TableInput=wanted, **where)
            except self._glue.exceptions.AlreadyExistsException:
                raise CatalogUnavailable(
                    f"catalog {self._name}: another run has just made {entry.name}"
                ) from None
            self._remove_former(entry, where)
            return True
        place = known.get("StorageDescriptor", {}).get("Location", "")
        entry.refuse_others(known.get("Parameters", {}), place)
        present = {field: known[field] for field in _OURS if known.get(field)}
        # Another tool's parameters and columns' comments stay.
        merged = wanted | {"Parameters": present.get("Parameters", {}) | wanted["Parameters"]}
        if _same(present, merged):
            return False
        self._glue.update_table(TableInput=merged, VersionId=known.get("VersionId", ""), **where)
        return True

    def _make_database(self, database: str) -> None:
        try:
            self._glue.get_database(Name=database, **self._place)
        except self._glue.exceptions.EntityNotFoundException:
            try:
                self._glue.create_database(DatabaseInput={"Name": database}, **self._place)
            except self._glue.exceptions.AlreadyExistsException:
                return

    def _remove_former(self, entry: TableEntry, where: Mapping[str, str]) -> None:
        """Remove entries of the topic by other names: its name in the catalog was changed."""
        for other in self._tables(where):
            is_former = entry.is_same_table(other.get("Parameters", {}))
            if is_former and other["Name"] != entry.parts[1]:
                self._glue.delete_table(Name=other["Name"], **where)

    def _tables(self, where: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        for page in self._glue.get_paginator("get_tables").paginate(**where):
            yield from page["TableList"]


def _input(entry: TableEntry) -> dict[str, Any]:
    """Return the TableInput of an entry."""
    partitions = sorted(
        (column for column in entry.columns if column.partition_index is not None),
        key=lambda column: column.partition_index or 0,
    )
    found: dict[str, Any] = {
        "Name": entry.parts[1],
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {
            "EXTERNAL": "TRUE",
            "classification": "delta",
            "table_type": "DELTA",
            "spark.sql.sources.provider": "delta",
            **entry.properties,
        },
        "PartitionKeys": [_column(column) for column in partitions],
        "StorageDescriptor": {
            "Columns": [
                _column(column) for column in entry.columns if column.partition_index is None
            ],
            "Location": entry.location,
            "SerdeInfo": {"Parameters": {"path": entry.location, "serialization.format": "1"}},
        },
    }
    if entry.owner:
        found["Owner"] = entry.owner
    if entry.comment:
        found["Description"] = entry.comment[:_COMMENT_CHARACTERS]
    return found


def _column(column: EntryColumn) -> dict[str, str]:
    return {"Name": column.name, "Type": column.catalog_string}


def _same(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an entry has what is wanted; a catalog adds fields of its own."""
    storage, known = wanted["StorageDescriptor"], present.get("StorageDescriptor", {})
    return (
        all(present.get(field) == wanted.get(field) for field in ("Description", "Parameters"))
        and wanted.get("Owner") in {None, present.get("Owner")}
        and known.get("Location") == storage["Location"]
        and _types(known.get("Columns")) == _types(storage["Columns"])
        and _types(present.get("PartitionKeys")) == _types(wanted["PartitionKeys"])
    )


def _types(columns: Any) -> list[tuple[str, str]]:
    return [(column["Name"], column["Type"]) for column in columns or ()]
