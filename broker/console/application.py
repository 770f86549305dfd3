"""The console as a WSGI application: its addresses, and pages by templates.

Every response is made for one viewer and is not kept by caches. Scripts and styles come from the
node alone (Content-Security-Policy), so a record that looks like HTML is text, and nothing is
loaded from other hosts.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.node_status import request_heartbeats
from lakehead.broker.console import pages
from lakehead.broker.console.records import RECORDS_MAX, fetch_batches, shown_records
from lakehead.broker.console.viewer import Viewer, is_foreign_host, viewer_of
from lakehead.broker.diagnosis.metadata_log import public_entry
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.observability.page_access import PageAccess
from lakehead.broker.plain_text import moment, size_text
from lakehead.broker.protocol.errors import KafkaError
from lakehead.installation import VERSION
from lakehead.storage.errors import LakeheadError, NotFound

T = TypeVar("T")
PREFIX = "/console/"
_TIMEOUT_S = 10.0
"""A page that takes the node longer is given up."""
_STATIC = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; form-action 'self'"),
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
]
_TOPIC = re.compile(r"topics/([A-Za-z0-9._-]{1,249})(/records)?")
_ENTRY = re.compile(r"log/(\d{1,19})")


class Reply(NamedTuple):
    """A response: its status, type of content and body; `location` of a redirection."""

    status: str
    content_type: str
    body: bytes
    location: str = ""


class PageError(Exception):
    """A page cannot be shown: the status, and one line for the viewer."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    """A request of a viewer: the path below `PREFIX`, and the query."""

    viewer: Viewer
    path: str
    query: Mapping[str, str]

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number of the query, from 0 to `most`."""
        text = self.query.get(name, "")
        if text and not (text.isdecimal() and len(text) < 20):
            raise PageError("400 Bad Request", f"{name}: {text!r} is not a whole number")
        return min(int(text), most) if text else default


class Console:
    """The console of a node, whose event loop is `loop`."""

    def __init__(
        self, node: ObservedNode, access: PageAccess, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._node = node
        self._access = access
        self._loop = loop
        self._templates = Environment(
            loader=PackageLoader("lakehead.broker.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"size": size_text, "moment": moment, "count": _count}
        self._templates.globals |= {"version": VERSION, "prefix": PREFIX}
        self._pages: Mapping[str, Callable[[Request], Reply]] = {
            "": self._cluster,
            "live": self._live,
            "topics": self._topics,
            "groups": self._groups,
            "group": self._group,
            "lag": self._lag,
            "tables": self._tables,
            "log": self._log,
        }

    def respond(self, environment: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        """Respond as WSGI has it (PEP 3333)."""
        try:
            reply = self._reply(environment)
        except PageError as error:
            reply = self._error(error.status, str(error))
        except NotFound as error:
            reply = self._error("404 Not Found", str(error))
        except KafkaError as error:
            reply = self._error("503 Service Unavailable", _refusal(error))
        except (LakeheadError, TimeoutError) as error:
            reason = str(error) or f"the node did not respond within {_TIMEOUT_S:.0f} s"
            reply = self._error("503 Service Unavailable", reason)
        headers = [*_HEADERS, ("Content-Type", f"{reply.content_type}; charset=utf-8")]
        if reply.location:
            headers.append(("Location", reply.location))
        if reply.status.startswith("401"):
            headers.append(("WWW-Authenticate", 'Basic realm="lakehead", charset="UTF-8"'))
        start_response(reply.status, headers)
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [reply.body]

    def _reply(self, environment: Mapping[str, Any]) -> Reply:
        if environment["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            raise PageError("405 Method Not Allowed", "the console only reads")
        if is_foreign_host(self._access, environment.get("HTTP_HOST", "")):
            raise PageError(
                "403 Forbidden", "open the console as 127.0.0.1 or localhost, or set metrics.users"
            )
        path = environment.get("PATH_INFO", "")
        if path in {"/", PREFIX.rstrip("/")}:
            return Reply("302 Found", "text/plain", b"", PREFIX)
        path = path.removeprefix(PREFIX)
        if path.startswith("static/"):
            return _static(path.removeprefix("static/"))
        if not self._node.is_ready:
            raise PageError("503 Service Unavailable", "the node is starting: try again")
        viewer = viewer_of(
            self._node,
            self._access,
            environment.get("HTTP_AUTHORIZATION", ""),
            environment.get("REMOTE_ADDR", ""),
        )
        if viewer is None:
            raise PageError("401 Unauthorized", "log in with a user of the cluster")
        query = parse_qs(environment.get("QUERY_STRING", ""), max_num_fields=20)
        request = Request(viewer, path, {name: values[-1] for name, values in query.items()})
        return self._page_of(path)(request)

    def _page_of(self, path: str) -> Callable[[Request], Reply]:
        if (page := self._pages.get(path)) is not None:
            return page
        if (match := _TOPIC.fullmatch(path)) is not None:
            name, records = match[1], match[2]
            return lambda request: (self._records if records else self._topic)(request, name)
        if (match := _ENTRY.fullmatch(path)) is not None:
            number = int(match[1])
            return lambda request: self._entry(request, number)
        raise PageError("404 Not Found", "there is no such page")

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that belongs to the event loop. Raises TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_TIMEOUT_S)
        finally:
            future.cancel()

    def _checked(self, may: Callable[[], bool], what: str) -> None:
        async def check() -> bool:
            return may()

        if not self._on_loop(check()):
            raise PageError("403 Forbidden", f"the access rules do not let you {what}")

    def _render(self, template: str, **values: Any) -> Reply:
        text = self._templates.get_template(template).render(**values)
        return Reply("200 OK", "text/html", text.encode())

    def _error(self, status: str, reason: str) -> Reply:
        page = self._render("error.html", title=status.partition(" ")[2], reason=reason)
        return page._replace(status=status)

    # The pages.

    def _cluster(self, request: Request) -> Reply:
        self._checked(request.viewer.sees_cluster, "describe the cluster")
        return self._render("cluster.html", **pages.cluster_page(self._node))

    def _live(self, request: Request) -> Reply:
        self._checked(request.viewer.sees_cluster, "describe the cluster")
        node = self._node
        responses = self._on_loop(request_heartbeats(node.network, node.state))
        found = pages.live(node.state, responses)
        seen = self._seen(request.viewer, [row["topic"] for row in found["busiest"]])
        found["busiest"] = [row for row in found["busiest"] if row["topic"] in seen]
        return _json(found | {"time_ms": node.clock.now_ms()})

    def _seen(self, viewer: Viewer, names: Iterable[str]) -> list[str]:
        if not self._node.services.authorizer.is_enabled:
            return list(names)
        return self._on_loop(pages.allowed(names, viewer.sees_topic))

    def _topics(self, request: Request) -> Reply:
        state, text = self._node.state, request.query.get("q", "")
        names = self._seen(request.viewer, list(state.topics))
        found = pages.topics_page(
            state,
            names,
            text=text,
            internal="internal" in request.query,
            page=max(request.number("page", 1, 1 << 20), 1),
        )
        return self._render("topics.html", text=text, internal="internal" in request.query, **found)

    def _topic(self, request: Request, name: str) -> Reply:
        viewer, node = request.viewer, self._node

        async def look() -> tuple[bool, bool, dict[int, int]]:
            return (
                viewer.sees_configs(name),
                viewer.reads_topic(name),
                pages.high_watermarks(node, name),
            )

        topic = self._find_topic(request, name)
        shows_configs, may_read, ends = self._on_loop(look())
        found = pages.topic_page(node.state, topic, ends, shows_configs=shows_configs)
        return self._render("topic.html", may_read=may_read, **found)

    def _find_topic(self, request: Request, name: str) -> Any:
        """Return a topic that the viewer sees. One that may not be seen is not there."""
        if not self._seen(request.viewer, [name]) or name not in self._node.state.topics:
            raise NotFound(f"there is no topic {name}")
        return self._node.state.topics[name]

    def _records(self, request: Request, name: str) -> Reply:
        topic = self._find_topic(request, name)
        self._checked(lambda: request.viewer.reads_topic(name), f"read topic {name}")
        partition = request.number("partition", 0, 1 << 31)
        if partition >= len(topic.partitions):
            raise NotFound(f"topic {name} has {len(topic.partitions)} partitions")
        limit = max(request.number("limit", 50, RECORDS_MAX), 1)
        offset = request.number("offset", -1, 1 << 62)
        found = self._on_loop(
            fetch_batches(
                self._node,
                topic.partitions[partition],
                offset=offset if offset >= 0 else None,
                time_ms=_time(request.query.get("time", "")),
                newest=limit,
            )
        )
        text = request.query.get("q", "")
        page = shown_records(found, limit=limit, text=text)
        return self._render(
            "records.html",
            name=name,
            partition=partition,
            partitions=len(topic.partitions),
            limit=limit,
            text=text,
            time=request.query.get("time", ""),
            first=found.offset,
            start=found.start,
            end=found.end,
            is_led=found.is_led,
            page=asdict(page),
        )

    def _groups(self, request: Request) -> Reply:
        groups = self._on_loop(pages.groups_page(request.viewer))
        nodes = sum(not node.is_fenced for node in self._node.state.nodes.values())
        return self._render("groups.html", groups=groups, nodes=nodes, quoted=quote)

    def _group(self, request: Request) -> Reply:
        return self._render("group.html", quoted=quote, **self._found_group(request))

    def _lag(self, request: Request) -> Reply:
        lags = self._found_group(request)["lags"]
        return _json({"time_ms": self._node.clock.now_ms(), "lag": sum(r["lag"] for r in lags)})

    def _found_group(self, request: Request) -> dict[str, Any]:
        name = request.query.get("id", "")
        self._checked(lambda: request.viewer.sees_group(name), f"describe group {name}")
        found = self._on_loop(pages.group_page(request.viewer, name))
        if found is None:
            raise NotFound(f"there is no group {name}")
        seen = set(self._seen(request.viewer, {row["topic"] for row in found["lags"]}))
        return found | {"lags": [row for row in found["lags"] if row["topic"] in seen]}

    def _tables(self, request: Request) -> Reply:
        state = self._node.state
        declared = [name for name, topic in state.topics.items() if topic.declares_table]
        names = self._seen(request.viewer, declared)
        return self._render("tables.html", tables=pages.tables_page(state, names))

    def _log(self, request: Request) -> Reply:
        self._checked(request.viewer.sees_cluster, "describe the cluster")
        newest = self._node.state.next_entry
        before = request.number("before", newest, newest)
        return self._render("log.html", **self._on_loop(pages.log_page(self._node, before)))

    def _entry(self, request: Request, number: int) -> Reply:
        self._checked(request.viewer.sees_cluster, "describe the cluster")
        entry = self._on_loop(public_entry(self._node.engine.metadata.store, number))
        text = json.dumps(entry, indent=2, ensure_ascii=False)
        return self._render("entry.html", number=number, text=text)


def _refusal(error: KafkaError) -> str:
    if error.code is ErrorCode.not_coordinator:
        return "another node coordinates this group: open the console of that node"
    return f"the node cannot respond now, try again: {error}"


def _json(value: object) -> Reply:
    return Reply("200 OK", "application/json", json.dumps(value).encode())


def _static(name: str) -> Reply:
    if name not in _STATIC:
        raise PageError("404 Not Found", "there is no such file")
    body = files("lakehead.broker.console").joinpath("static", name).read_bytes()
    return Reply("200 OK", _STATIC[name], body)


def _count(number: int) -> str:
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _time(text: str) -> int | None:
    """Return a time in UTC as HTML writes it (2026-11-27T08:00), in milliseconds."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PageError("400 Bad Request", f"{text!r} is not a time") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
