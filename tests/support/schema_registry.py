"""A small schema registry over real HTTP: the endpoints that serializers and readers use."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Schemas:
    """What the registry holds, and how it behaves."""

    def __init__(self) -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.password: str | None = None
        self.failures_to_come = 0
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        with self._lock:
            kept = {
                key: schema[key]
                for key in ("schema", "schemaType", "references")
                if schema.get(key)
            }
            found = [number for number, held in self.by_id.items() if held == kept]
            schema_id = found[0] if found else len(self.by_id) + 100
            self.by_id[schema_id] = kept
            versions = {key: number for key, number in self.versions.items() if key[0] == subject}
            if schema_id not in versions.values():
                self.versions[subject, len(versions) + 1] = schema_id
            return schema_id

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        match method, parts:
            case "GET", ["schemas", "ids", text]:
                held = self.by_id.get(int(text))
                return (200, held) if held else (404, _error(40403, "Schema not found"))
            case "GET", ["schemas", "ids", text, "subjects"]:
                subjects = [name for (name, _), held in self.versions.items() if held == int(text)]
                return (200, subjects) if subjects else (404, _error(40403, "Schema not found"))
            case "POST", ["subjects", subject, "versions"]:
                schema_id = self.register(subject, body)
                return 200, {**self._version(subject, schema_id), **body}
            case "POST", ["subjects", subject]:
                return 200, {**body, **self._version(subject, self.register(subject, body))}
            case "GET", ["subjects", subject, "versions", text]:
                found = self.versions.get((subject, int(text)))
                if found is None and all(name != subject for name, _ in self.versions):
                    return 404, _error(40401, "Subject not found")
                if found is None:
                    return 404, _error(40402, "Version not found")
                return 200, {**self._version(subject, found), **self.by_id[found]}
        return 404, _error(404, "HTTP 404 Not Found")

    def _version(self, subject: str, schema_id: int) -> dict[str, Any]:
        pairs = [key for key, number in self.versions.items() if number == schema_id]
        version = next(version for of, version in pairs if of == subject)
        return {"subject": subject, "id": schema_id, "version": version}


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def serve_schemas() -> Iterator[tuple[str, Schemas]]:
    """Serve a registry on a free port of this machine; yields its URL and what it holds."""
    schemas = Schemas()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            schemas.requests.append(f"{self.command} {self.path}")
            status, answer = self._answer(body)
            encoded = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
            self.send_header("content-length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def _answer(self, body: dict[str, Any]) -> tuple[int, Any]:
            if schemas.failures_to_come > 0:
                schemas.failures_to_come -= 1
                return 503, _error(50003, "no leader")
            if schemas.password is not None:
                wanted = base64.b64encode(schemas.password.encode()).decode()
                if self.headers.get("authorization") != f"Basic {wanted}":
                    return 401, _error(401, "Unauthorized")
            return schemas.answer(self.command, self.path, body)

        do_GET = do_POST = _serve  # noqa: N815 - http.server's names

        def log_message(self, *args: Any) -> None:
            """Nothing: the test prints what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", schemas
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
