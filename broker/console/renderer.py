"""The parts that all pages are made with: templates, the node's event loop, access rules."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from lakehead.broker.console import pages
from lakehead.broker.console.page_request import PREFIX, PageError, Reply
from lakehead.broker.console.records import visible
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.installation import VERSION
from lakehead.storage.errors import NotFound
from lakehead.storage.metadata.state import TopicState
from lakehead.storage.plain_text import moment, size_text

T = TypeVar("T")
_MOMENT_LENGTH = len("2026-11-28 00:00:00.000")
TIMEOUT_S = 10.0
"""A page that takes the node longer is given up."""


class Renderer:
    """Makes pages of a node, whose event loop is `loop`, in other threads."""

    def __init__(self, node: ObservedNode, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self.loop = loop
        self._templates = Environment(
            loader=PackageLoader("lakehead.broker.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "size": size_text,
            "time": self._time,
            "count": _count,
            "short": _short,
            "duration": _duration,
            "visible": visible,
        }
        self._templates.globals |= {"version": VERSION, "prefix": PREFIX, "quoted": _quoted}

    def _time(self, milliseconds: int) -> str:
        """Return a time, in UTC until a script puts it in the zone of the viewer."""
        text = moment(milliseconds)
        if not text[:1].isdigit() or len(text) < _MOMENT_LENGTH:
            return text
        macros: Any = self._templates.get_template("time.html").module
        shown: str = macros.time(text)
        return shown

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that belongs to the event loop. Raises TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(TIMEOUT_S)
        finally:
            future.cancel()

    def is_allowed(self, rule: Callable[[], bool]) -> bool:
        """Return the judgement of an access rule, which belongs to the event loop."""

        async def judged() -> bool:
            return rule()

        return self.on_loop(judged())

    def require(self, rule: Callable[[], bool], what: str) -> None:
        """Raise PageError unless an access rule lets the viewer do something."""
        if not self.is_allowed(rule):
            raise PageError("403 Forbidden", f"the access rules do not let you {what}")

    def render(self, template: str, **values: Any) -> Reply:
        """Return a page by a template."""
        text = self._templates.get_template(template).render(**values)
        return Reply("200 OK", "text/html", text.encode(errors="backslashreplace"))

    def seen(self, viewer: Viewer, names: Iterable[str]) -> list[str]:
        """Return the topics among these that the viewer sees."""
        if not self.node.services.authorizer.is_enabled:
            return list(names)
        return self.on_loop(pages.allowed(names, viewer.sees_topic))

    def topic(self, viewer: Viewer, name: str) -> TopicState:
        """Return a topic. Raises NotFound, also for one that the viewer does not see."""
        topic = self.node.state.topics.get(name)
        if topic is None or not self.seen(viewer, [name]):
            raise NotFound(f"there is no topic {name}")
        return topic


def _quoted(text: str) -> str:
    """Return text as a part of an address."""
    return quote(text, safe="")


def _count(number: int) -> str:
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _short(number: float) -> str:
    """Return a large number in few characters, as 1.2 M."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.0f}" if not unit else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} T"


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, hours = whole // 60, whole // 3600
    return f"{minutes} min {whole % 60} s" if not hours else f"{hours} h {minutes % 60} min"
