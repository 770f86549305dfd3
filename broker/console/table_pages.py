"""The pages of tables: their state, last commits and dead letters, and replays of these."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from lakehead.broker.console import pages
from lakehead.broker.console.lake_process import LakeProcess, LakeProcessError
from lakehead.broker.console.page_request import PREFIX, PageError, Reply, Request, json_reply
from lakehead.broker.console.records import as_text
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.console.replays import Replays
from lakehead.broker.console.topic_values import TopicValues
from lakehead.storage.errors import NotFound
from lakehead.storage.metadata.state import TopicState

_TABLES_S = 6.0
"""Longest wait for the tables of a page. A connection is closed after 30 seconds."""
_LETTERS_S = 12.0
_RUNS_MAX = 20
_LETTERS_MAX = 100


class TablePages:
    """Makes the pages; tables are read by the process `lake`."""

    def __init__(self, renderer: Renderer, lake: LakeProcess) -> None:
        self._renderer = renderer
        self._node = renderer.node
        self._lake = lake
        self._replays = Replays(renderer.node)
        self._replaying: Any = None
        """The last replay, which nothing else may refer to."""

    def tables(self, request: Request) -> Reply:
        """Return the declared tables."""
        text = request.query.get("q", "")
        found = pages.tables_page(
            self._node.state,
            self._declaring(request, text),
            page=request.page,
        )
        source = urlencode({"q": text, "page": found["page"]})
        return self._renderer.render("tables.html", text=text, source=source, **found)

    def _declaring(self, request: Request, text: str) -> list[str]:
        """Return the topics with a table, and with the text in their names, that the viewer
        sees.
        """
        topics = self._node.state.topics
        names = pages.with_text(topics, text, internal=True)
        return self._renderer.seen(
            request.viewer, [name for name in names if topics[name].declares_table]
        )

    def table_status(self, request: Request) -> Reply:
        """Return the status of the tables of a page, for its script."""
        found = pages.tables_page(
            self._node.state,
            self._declaring(request, request.query.get("q", "")),
            page=request.page,
        )
        topics = sorted({row["topic"] for row in found["tables"]})
        try:
            return json_reply({"tables": self._statuses(topics)})
        except LakeProcessError as error:
            return json_reply({"problem": str(error)})._replace(status="503 Service Unavailable")

    def _statuses(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        """Return the status of the tables of topics. Raises LakeProcessError."""
        if not topics:
            return []
        statuses: list[dict[str, Any]] = self._lake.request(
            "tables",
            timeout_s=_TABLES_S + 2,
            store=self._node.services.settings.store_address,
            topics=topics,
            timeout_s_of_tables=_TABLES_S,
        )
        return statuses

    def _found_table(self, request: Request) -> tuple[TopicState, dict[str, Any]]:
        """Return a declared table with its topic, which the viewer sees."""
        key = request.query.get("name", "")
        topic = self._renderer.topic(request.viewer, key.partition("/")[0])
        row = pages.table_row(self._node.state, topic, key)
        if row is None:
            raise NotFound(f"topic {topic.name} declares no table {key}")
        return topic, row

    def table(self, request: Request) -> Reply:
        """Return a table with its last commits."""
        topic, row = self._found_table(request)
        status, runs, problem = None, [], ""
        try:
            statuses = self._statuses([topic.name])
            name = row["key"].rpartition("/")[2]
            status = next((one for one in statuses if one["name"] in {name, ""}), None)
            if status is not None and status["version"] is not None:
                runs = self._lake.request(
                    "runs", timeout_s=_TABLES_S, table=status["table"], count=_RUNS_MAX
                )
        except LakeProcessError as error:
            problem = f"the table cannot be looked at: {error}"
        viewer = request.viewer
        may_read = self._renderer.is_allowed(lambda: viewer.reads_topic(topic.name))
        if not self._renderer.is_allowed(lambda: viewer.sees_configs(topic.name)):
            row = row | {"configs": None}
        return self._renderer.render(
            "table.html",
            row=row,
            status=status,
            runs=runs,
            problem=problem,
            may_read=may_read,
        )

    def dead_letters(self, request: Request) -> Reply:
        """Return dead letters of a table."""
        topic, row = self._found_table(request)
        self._renderer.require(
            lambda: request.viewer.reads_topic(topic.name), f"read topic {topic.name}"
        )
        error_class = request.query.get("class", "")
        found = self._lake.request(
            "dead_letters",
            timeout_s=_LETTERS_S,
            store=self._node.services.settings.store_address,
            key=row["key"],
            count=_LETTERS_MAX,
            error_class=error_class,
        )
        data = [_bytes(one["value"]) for one in found["letters"]]
        values = TopicValues(self._node, self._lake, topic, request.viewer)
        letters = [
            one
            | {
                "key": as_text(_bytes(one["key"])),
                "value": as_text(value) if reading.text is None else as_text(reading.text.encode()),
            }
            for one, value, reading in zip(
                found["letters"], data, values.decode_values(data), strict=True
            )
        ]
        return self._renderer.render(
            "dead_letters.html",
            row=row,
            counts=found["counts"],
            letters=letters,
            error_class=error_class,
            replays=self._may_replay(request, topic),
        )

    def _may_replay(self, request: Request, topic: TopicState) -> bool:
        """Return true if the node allows changes by its console, and the viewer may make rows of
        the topic's records and set the configs of its tables.
        """
        if not self._node.services.settings.console_writes:
            return False
        viewer, name = request.viewer, topic.name
        return self._renderer.is_allowed(
            lambda: viewer.reads_topic(name) and viewer.alters_configs(name)
        )

    def replay(self, request: Request) -> Reply:
        """Return the last replay of a table with a form for another, or begin one by that form."""
        topic, row = self._found_table(request)
        if not self._node.services.settings.console_writes:
            raise PageError("403 Forbidden", "this console only reads (setting console.writes)")
        if not self._may_replay(request, topic):
            raise PageError(
                "403 Forbidden",
                f"a replay needs READ and ALTER_CONFIGS of topic {topic.name}",
            )
        key = row["key"]
        if request.form is None:
            last = self._renderer.on_loop(self._replays.last(key))
            shown = None if last is None else asdict(last)
            return self._renderer.render("replay.html", key=key, last=shown)
        is_dry_run = request.form.get("action") != "replay"
        if not is_dry_run and request.form.get("confirm") != key:
            raise PageError("400 Bad Request", f"type the name of the table to confirm: {key}")
        user = request.viewer.principal.name
        self._replaying = asyncio.run_coroutine_threadsafe(
            self._replays.run(key, user, is_dry_run=is_dry_run), self._renderer.loop
        )
        place = f"{PREFIX}replay?{urlencode({'name': key})}"
        return Reply("303 See Other", "text/plain", b"", place)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
