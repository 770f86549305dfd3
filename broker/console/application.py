"""The console as a WSGI application: its addresses, and pages by templates.

Every page is made for one viewer and is not kept by caches. Scripts and styles come from the node
alone (Content-Security-Policy), so a record that looks like HTML is text, and nothing is loaded
from other hosts.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.node_status import request_heartbeats
from lakehead.broker.console import pages
from lakehead.broker.console.audit_trail import visible_entry
from lakehead.broker.console.group_pages import GroupPages
from lakehead.broker.console.job_pages import JobPages
from lakehead.broker.console.lake_process import LakeProcess
from lakehead.broker.console.page_request import (
    PREFIX,
    PageError,
    Reply,
    Request,
    fields_of,
    json_reply,
)
from lakehead.broker.console.record_pages import RecordPages
from lakehead.broker.console.renderer import TIMEOUT_S, Renderer
from lakehead.broker.console.search_page import SearchPage
from lakehead.broker.console.table_pages import TablePages
from lakehead.broker.console.viewer import is_foreign_host, viewer_of
from lakehead.broker.diagnosis.metadata_log import public_entry
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.observability.page_access import PageAccess
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import LakeheadError, NotFound

_log = structlog.get_logger("broker.console")
_STATIC = {
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
    "console.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}
_HEADERS = [
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        (
            "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
            "form-action 'self'"
        ),
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
]
_TOPIC = re.compile(r"topics/([A-Za-z0-9._-]{1,249})(?:/(records|partitions/(\d{1,9})))?")
_FORMS = {f"{PREFIX}replay"}
_ADVICE = {
    "401": "A user of the cluster, or one of metrics.users, with its password.",
    "403": "An operator allows it by an access rule: docs/console.md has those that pages need.",
    "404": "Look for the name in the box above; access rules may hide it from you.",
    "503": "Load the page again in a moment.",
}
_KEPT = "private, max-age=3600"
"""Of scripts and styles, whose addresses have the version: else each page would load them again."""
_READS, _CHANGES = {"GET", "HEAD"}, {"GET", "HEAD", "POST"}
_FORM_MAX = 4096
_ENTRY = re.compile(r"log/(\d{1,19})")


class Console:
    """The console of a node, whose event loop is `loop`."""

    def __init__(
        self, node: ObservedNode, access: PageAccess, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._node = node
        self._access = access
        self._renderer = Renderer(node, loop)
        self._lake = LakeProcess(node.services.settings)
        self._records = RecordPages(self._renderer, self._lake)
        jobs = JobPages(self._renderer)
        tables = TablePages(self._renderer, self._lake)
        search = SearchPage(self._renderer)
        self._groups = groups = GroupPages(self._renderer)
        self._addresses: Mapping[str, Callable[[Request], Reply]] = {
            "": self._cluster,
            "live": self._live,
            "topics": self._topics,
            "search": search.search,
            "suggest": search.suggest,
            "groups": groups.groups,
            "group": groups.group,
            "lag": groups.lag,
            "tables": tables.tables,
            "table": tables.table,
            "table-status": tables.table_status,
            "dead-letters": tables.dead_letters,
            "replay": tables.replay,
            "jobs": jobs.jobs,
            "connectors": jobs.connectors,
            "log": self._log,
        }

    def close(self) -> None:
        """End the process and the thread that pages have started."""
        self._groups.close()
        self._lake.close()

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
            reason = str(error) or f"the node did not respond within {TIMEOUT_S:.0f} s"
            reply = self._error("503 Service Unavailable", reason)
        except Exception as error:  # noqa: BLE001 - a defect of one page, and no page without words
            _log.error("console_page_failed", path=environment.get("PATH_INFO"), exc_info=error)
            reason = f"unexpected {type(error).__name__}: the log of the node has the traceback"
            reply = self._error("500 Internal Server Error", reason)
        headers = [
            (name, _KEPT if name == "Cache-Control" and reply.is_kept else value)
            for name, value in _HEADERS
        ]
        headers.append(("Content-Type", f"{reply.content_type}; charset=utf-8"))
        if reply.location:
            headers.append(("Location", reply.location))
        if reply.status.startswith("401"):
            headers.append(("WWW-Authenticate", 'Basic realm="lakehead", charset="UTF-8"'))
        start_response(reply.status, headers)
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [reply.body]

    def _reply(self, environment: Mapping[str, Any]) -> Reply:
        path = environment.get("PATH_INFO", "")
        if environment["REQUEST_METHOD"] not in (_CHANGES if path in _FORMS else _READS):
            raise PageError("405 Method Not Allowed", "this page only reads")
        if is_foreign_host(self._access, environment.get("HTTP_HOST", "")):
            raise PageError(
                "403 Forbidden", "open the console as 127.0.0.1 or localhost, or set metrics.users"
            )
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
        form = None
        if environment["REQUEST_METHOD"] == "POST":
            _check_origin(environment)
            size = environment.get("CONTENT_LENGTH", "")
            if not (size.isdecimal() and int(size) <= _FORM_MAX):
                raise PageError("400 Bad Request", f"a form has at most {_FORM_MAX} bytes")
            form = fields_of(environment["wsgi.input"].read(int(size)).decode(errors="replace"))
        query = fields_of(environment.get("QUERY_STRING", ""))
        return self._page_of(path)(Request(viewer, path, query, form))

    def _page_of(self, path: str) -> Callable[[Request], Reply]:
        if (page := self._addresses.get(path)) is not None:
            return page
        if (match := _TOPIC.fullmatch(path)) is not None:
            name, partition = match[1], match[3]
            if partition is not None:
                return lambda request: self._partition(request, name, int(partition))
            if match[2] is not None:
                return lambda request: self._records.records(request, name)
            return lambda request: self._topic(request, name)
        if (match := _ENTRY.fullmatch(path)) is not None:
            number = int(match[1])
            return lambda request: self._entry(request, number)
        raise PageError("404 Not Found", "there is no such page")

    def _error(self, status: str, reason: str) -> Reply:
        advice = _ADVICE.get(status[:3], "")
        title = status.partition(" ")[2]
        page = self._renderer.render("error.html", title=title, reason=reason, advice=advice)
        return page._replace(status=status)

    # The pages.

    def _cluster(self, request: Request) -> Reply:
        self._renderer.require(request.viewer.sees_cluster, "describe the cluster")
        return self._renderer.render("cluster.html", **pages.cluster_page(self._node))

    def _live(self, request: Request) -> Reply:
        self._renderer.require(request.viewer.sees_cluster, "describe the cluster")
        node = self._node
        responses = self._renderer.on_loop(request_heartbeats(node.network, node.state))
        found = pages.live(node.state, responses)
        seen = self._renderer.seen(request.viewer, [row["topic"] for row in found["busiest"]])
        found["busiest"] = [row for row in found["busiest"] if row["topic"] in seen]
        return json_reply(
            found | {"time_ms": node.clock.now_ms(), "latencies": pages.latencies(node)}
        )

    def _topics(self, request: Request) -> Reply:
        state, text = self._node.state, request.query.get("q", "")
        internal = "internal" in request.query
        names = self._renderer.seen(
            request.viewer, pages.with_text(state.topics, text, internal=internal)
        )
        found = pages.topics_page(state, names, page=request.page)
        return self._renderer.render("topics.html", text=text, internal=internal, **found)

    def _topic(self, request: Request, name: str) -> Reply:
        viewer, node = request.viewer, self._node

        async def look() -> tuple[bool, bool, dict[int, int]]:
            return (
                viewer.sees_configs(name),
                viewer.reads_topic(name),
                pages.high_watermarks(node, name),
            )

        topic = self._renderer.topic(request.viewer, name)
        shows_configs, may_read, ends = self._renderer.on_loop(look())
        found = pages.topic_page(
            node.state, topic, ends, shows_configs=shows_configs, page=request.page
        )
        groups = self._groups.of_topic(request.viewer, name)
        return self._renderer.render("topic.html", may_read=may_read, groups=groups, **found)

    def _partition(self, request: Request, name: str, partition: int) -> Reply:
        viewer, node = request.viewer, self._node

        async def look() -> tuple[bool, dict[int, int]]:
            return viewer.reads_topic(name), pages.high_watermarks(node, name)

        topic = self._renderer.topic(viewer, name)
        may_read, ends = self._renderer.on_loop(look())
        found = pages.partition_page(node.state, topic, partition, ends, page=request.page)
        groups = self._groups.of_topic(viewer, name, partition)
        return self._renderer.render(
            "partition.html", name=name, may_read=may_read, groups=groups, **found
        )

    def _log(self, request: Request) -> Reply:
        self._renderer.require(request.viewer.sees_cluster, "describe the cluster")
        newest = self._node.state.next_entry
        before = request.number("before", newest, newest)
        return self._renderer.render(
            "log.html", **self._renderer.on_loop(pages.log_page(self._node, before))
        )

    def _entry(self, request: Request, number: int) -> Reply:
        viewer, node = request.viewer, self._node
        self._renderer.require(viewer.sees_cluster, "describe the cluster")

        async def look() -> Any:
            entry = await public_entry(node.engine.metadata.store, number)
            return visible_entry(entry, viewer, node.state)

        entry = self._renderer.on_loop(look())
        text = json.dumps(entry, indent=2, ensure_ascii=False)
        return self._renderer.render(
            "entry.html", number=number, text=text, newest=node.state.next_entry - 1
        )


def _check_origin(environment: Mapping[str, Any]) -> None:
    """Raise PageError unless a form was sent by a page of this console. A browser sends a viewer's
    login with forms of other sites, too.
    """
    origin = urlsplit(environment.get("HTTP_ORIGIN", ""))
    site = environment.get("HTTP_SEC_FETCH_SITE", "same-origin")
    if site != "same-origin" or not origin.netloc or origin.netloc != environment.get("HTTP_HOST"):
        raise PageError("403 Forbidden", "the form is not of this console")


def _refusal(error: KafkaError) -> str:
    if error.code is ErrorCode.not_coordinator:
        return "another node coordinates this group: open the console of that node"
    return f"the node cannot respond now, try again: {error}"


def _static(name: str) -> Reply:
    if name not in _STATIC:
        raise PageError("404 Not Found", "there is no such file")
    body = files("lakehead.broker.console").joinpath("static", name).read_bytes()
    return Reply("200 OK", _STATIC[name], body, is_kept=True)
