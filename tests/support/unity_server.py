"""A server with Unity Catalog's REST interface for schemas and external tables, in this process.

It keeps the rules that the open-source server (of August 2026) was seen to have: a schema needs its
catalog, a table its schema; a name is there once; names of types get small letters; pages of lists
have tokens. That a place is of one table is a rule of Databricks'.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_ROOT = "/api/2.1/unity-catalog"
_CATALOG = "unity"


class UnityServer:
    """The tables and schemas of one catalog, `unity`."""

    def __init__(self, response: bytes | None) -> None:
        self.uri = ""
        self.response = response
        """The body of every response, of a server that is none."""
        self._schemas: set[str] = set()
        self._tables: dict[str, dict[str, Any]] = {}

    def tables(self, catalog: str, schema: str) -> list[dict[str, Any]]:
        """Return the tables of a schema."""
        prefix = f"{catalog}.{schema}."
        return [table for name, table in self._tables.items() if name.startswith(prefix)]

    def add_table(self, catalog: str, schema: str, name: str, *, location: str) -> None:
        """Add a table that another user made."""
        self._schemas.add(f"{catalog}.{schema}")
        self._tables[f"{catalog}.{schema}.{name}"] = {
            "name": name,
            "storage_location": location,
            "columns": [],
            "properties": {},
        }

    def remove_table(self, name: str) -> None:
        """Remove a table by its whole name."""
        del self._tables[name]

    def handle(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the response to a request."""
        url = urlsplit(target)
        kind, _, name = url.path.removeprefix(_ROOT).strip("/").partition("/")
        name = unquote(name)
        if kind == "schemas":
            return self._schema(method, name, body)
        if name:
            if name not in self._tables:
                return 404, {"error_code": "TABLE_NOT_FOUND"}
            if method == "DELETE":
                del self._tables[name]
                return 200, {}
            return 200, self._tables[name]
        if method == "POST":
            return self._add(body)
        query = {field: values[0] for field, values in parse_qs(url.query).items()}
        found = self.tables(query["catalog_name"], query["schema_name"])
        begin = int(query.get("page_token", 0))
        more = {"next_page_token": str(begin + 1)} if begin + 1 < len(found) else {}
        return 200, {"tables": found[begin : begin + 1], **more}

    def _schema(self, method: str, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        if method == "GET":
            is_there = name in self._schemas
            return (200, {"full_name": name}) if is_there else (404, {"error_code": "NOT_FOUND"})
        if body["catalog_name"] != _CATALOG:
            return 404, {"error_code": "CATALOG_NOT_FOUND"}
        self._schemas.add(f"{body['catalog_name']}.{body['name']}")
        return 200, body

    def _add(self, body: dict[str, Any]) -> tuple[int, Any]:
        schema = f"{body['catalog_name']}.{body['schema_name']}"
        if schema not in self._schemas:
            return 404, {"error_code": "SCHEMA_NOT_FOUND"}
        name, location = f"{schema}.{body['name']}", body["storage_location"]
        if name in self._tables:
            return 409, {"error_code": "TABLE_ALREADY_EXISTS"}
        if any(table["storage_location"] == location for table in self._tables.values()):
            return 400, {"error_code": "INVALID_ARGUMENT", "message": "location overlaps"}
        columns = [{**one, "type_text": one["type_text"].lower()} for one in body["columns"]]
        self._tables[name] = {**body, "columns": columns}
        return 200, self._tables[name]


@contextmanager
def unity_server(*, response: bytes | None = None) -> Iterator[UnityServer]:
    """Serve an empty catalog on loopback."""
    served = UnityServer(response)

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = served.handle(
                self.command, self.path, json.loads(content) if content else {}
            )
            body = json.dumps(found).encode() if served.response is None else served.response
            self.send_response(status if served.response is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.uri = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
