"""Unity Catalog, open source and Databricks': external Delta tables by its REST interface.

Source: Unity Catalog API 2.1 (`/api/2.1/unity-catalog/tables`, `schemas`). The interface has no
request that changes an external table, so a changed entry is removed and made again. That drops
grants on the table, and so happens only if place, columns or texts differ.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import urllib3
from urllib3.exceptions import HTTPError

from lakehead.lake.catalogs.table_entry import (
    CatalogRejected,
    CatalogUnavailable,
    EntryColumn,
    TableEntry,
)
from lakehead.lake.tables.ddl import type_name
from lakehead.storage.errors import SettingsError

_ROOT = "/api/2.1/unity-catalog"
_PAGE = 50
_RESPONSE_BYTES_MAX = 16 << 20
_NAMES = {"TINYINT": "BYTE", "SMALLINT": "SHORT", "BIGINT": "LONG"}
"""Names of types in Unity's interface where they differ from those of DDL."""
_JSON_NAMES = {
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INT": "integer",
    "BIGINT": "long",
}
"""Names of types in Spark's JSON where they differ from those of DDL in small letters."""


class UnityCatalog:
    """A catalog at a URI; `token_file` has a bearer token, `ca_file` certificates of authorities.
    Names of tables have three parts: catalog, schema, table. The catalog must be there.
    """

    def __init__(self, name: str, *, uri: str, token_file: str = "", ca_file: str = "") -> None:
        self._name = name
        self._uri = uri.rstrip("/")
        self._token_file = token_file
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=5, read=30),
            retries=urllib3.Retry(total=2, redirect=False, backoff_factor=0.2),
            ca_certs=ca_file or None,
        )

    def put(self, entry: TableEntry) -> bool:
        """See `TableCatalog.put`."""
        if len(entry.parts) != 3:
            raise SettingsError(
                f"{entry.name}: a name in Unity Catalog has three parts, catalog.schema.table"
            )
        body = _body(entry)
        place = f"/tables/{quote(entry.name)}"
        known = self._request("GET", place)
        if known is None:
            self._make_schema(entry)
        else:
            entry.refuse_others(known.get("properties") or {}, str(known.get("storage_location")))
            if _same(known, body):
                return False
            self._request("DELETE", place)
        self._remove_former(entry)  # before, since a place is of one entry
        self._request("POST", "/tables", body)
        return True

    def _make_schema(self, entry: TableEntry) -> None:
        catalog, schema, _ = entry.parts
        if self._request("GET", f"/schemas/{quote(f'{catalog}.{schema}')}") is None:
            self._request("POST", "/schemas", {"name": schema, "catalog_name": catalog})

    def _remove_former(self, entry: TableEntry) -> None:
        """Remove entries of the topic by other names: its name in the catalog was changed."""
        for other in self._tables(entry):
            properties = other.get("properties") or {}
            is_former = entry.is_same_table(properties)
            if is_former and other["name"] != entry.parts[2]:
                name = ".".join((*entry.parts[:2], other["name"]))
                self._request("DELETE", f"/tables/{quote(name)}")

    def _tables(self, entry: TableEntry) -> Iterator[Mapping[str, Any]]:
        catalog, schema, _ = map(quote, entry.parts)
        token = ""
        while True:
            page = self._request(
                "GET",
                f"/tables?catalog_name={catalog}&schema_name={schema}&max_results={_PAGE}"
                + (f"&page_token={quote(token)}" if token else ""),
            )
            if page is None:
                return
            yield from page.get("tables") or ()
            token = page.get("next_page_token") or ""
            if not token:
                return

    def _request(
        self, method: str, place: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the response as JSON; None if what is requested is not there."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            if self._token_file:
                token = Path(self._token_file).read_text(encoding="utf-8").strip()
                headers["Authorization"] = f"Bearer {token}"
            response = self._pool.request(
                method,
                f"{self._uri}{_ROOT}{place}",
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                preload_content=False,
            )
            content = response.read(_RESPONSE_BYTES_MAX)
            response.release_conn()
        except (HTTPError, OSError, UnicodeDecodeError) as error:
            raise CatalogUnavailable(f"catalog {self._name}: {error}") from None
        if response.status == 404 and method in {"GET", "DELETE"}:
            return None
        if response.status >= 300:
            text = content.decode(errors="replace")[:500]
            kind = CatalogRejected if 400 <= response.status < 500 else CatalogUnavailable
            raise kind(f"catalog {self._name}: {method} {place}: {response.status} {text}")
        try:
            found = json.loads(content) if content.strip() else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if method == "DELETE":
                return {}
            raise CatalogUnavailable(
                f"catalog {self._name}: {method} {place}: the response is not a JSON object"
            )
        return found


def _body(entry: TableEntry) -> dict[str, Any]:
    """Return the request that makes a table."""
    catalog, schema, table = entry.parts
    return {
        "name": table,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "storage_location": entry.location,
        "comment": entry.comment,
        "properties": dict(entry.properties) | ({"owner": entry.owner} if entry.owner else {}),
        "columns": [_column(column) for column in entry.columns],
    }


def _column(column: EntryColumn) -> dict[str, Any]:
    text = column.catalog_string
    head = text.partition("<")[0].partition("(")[0].upper()
    found: dict[str, Any] = {
        "name": column.name,
        "type_text": text,
        "type_json": json.dumps(
            {
                "name": column.name,
                "type": _json_type(column.type),
                "nullable": True,
                "metadata": {},
            }
        ),
        "type_name": _NAMES.get(head, head),
        "position": column.position,
        "nullable": True,
    }
    if pa.types.is_decimal(column.type):
        found |= {"type_precision": column.type.precision, "type_scale": column.type.scale}
    if column.partition_index is not None:
        found["partition_index"] = column.partition_index
    return found


def _json_type(kind: Any) -> Any:
    """Return a type as Spark's JSON of schemas has it."""
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return {
            "type": "struct",
            "fields": [
                {
                    "name": field.name,
                    "type": _json_type(field.type),
                    "nullable": True,
                    "metadata": {},
                }
                for field in fields
            ],
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _json_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _json_type(kind.key_type),
            "valueType": _json_type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    name = type_name(kind)
    return _JSON_NAMES.get(name, name.lower())


def _same(known: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return whether a catalog's table is as a request would make it."""

    def columns(table: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        found = sorted(table.get("columns") or (), key=lambda column: column["position"])
        # The open-source server makes all letters of `type_text` small, those of fields too.
        return [(column["name"], json.loads(column["type_json"])["type"]) for column in found]

    return (
        str(known.get("storage_location")).rstrip("/") == body["storage_location"].rstrip("/")
        and (known.get("comment") or "") == body["comment"]
        and body["properties"].items() <= (known.get("properties") or {}).items()
        and columns(known) == columns(body)
    )
