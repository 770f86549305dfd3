"""The search over the names that a viewer may see: of topics, tables and groups."""

import heapq
from collections.abc import Iterable
from typing import Any

from lakehead.broker.console import pages
from lakehead.broker.console.page_request import PREFIX, Reply, Request, json_reply
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.protocol.errors import KafkaError

_SHOWN_MAX = 50
_SUGGESTED_MAX = 12
_TEXT_MAX = 300


class SearchPage:
    """Makes the page, and the suggestions of the search box."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._node = renderer.node

    def search(self, request: Request) -> Reply:
        """Return what has the text in its name; the page of a topic that has this name."""
        text, topics = self._topics(request)
        if text in topics:
            return Reply("302 Found", "text/plain", b"", f"{PREFIX}topics/{text}")
        groups: list[dict[str, Any]] = []
        if text:
            try:
                groups = self._renderer.on_loop(pages.groups_page(request.viewer, text))
            except KafkaError:
                pass  # they are being loaded
        known, shown = self._node.state.topics, first_names(topics, text, _SHOWN_MAX)
        return self._renderer.render(
            "search.html",
            text=text,
            topics=shown,
            total=len(topics),
            tables=[one for one in shown if one in known and known[one].declares_table],
            groups=groups[:_SHOWN_MAX],
            groups_total=len(groups),
        )

    def suggest(self, request: Request) -> Reply:
        """Return the first names of topics, for the search box."""
        text, topics = self._topics(request)
        return json_reply({"topics": first_names(topics, text, _SUGGESTED_MAX)})

    def _topics(self, request: Request) -> tuple[str, list[str]]:
        """Return the text that is looked for, and the topics with it in their names that the viewer
        sees: rules are applied to these alone.
        """
        text = request.query.get("q", "").strip()[:_TEXT_MAX]
        if not text:
            return text, []
        names = pages.with_text(self._node.state.topics, text, internal=text.startswith("_"))
        return text, self._renderer.seen(request.viewer, names)


def first_names(names: Iterable[str], text: str, most: int) -> list[str]:
    """Return some of the names: first those that begin with the text."""
    return heapq.nsmallest(most, names, key=lambda name: (not name.startswith(text), name))
