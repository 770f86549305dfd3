"""Requests for pages, and their responses."""

import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

from lakehead.broker.console.viewer import Viewer

PREFIX = "/console/"
_FIELDS_MAX = 20
_PAGES_MAX = 1 << 20


class Reply(NamedTuple):
    """A response: its status, type of content and body; `location` of a redirection."""

    status: str
    content_type: str
    body: bytes
    location: str = ""
    is_kept: bool = False


class PageError(Exception):
    """A page cannot be shown: the status, and one line for the viewer."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    """A request of a viewer: the path below `PREFIX`, the query, and the fields of a form that was
    sent (POST).
    """

    viewer: Viewer
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str] | None

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number of the query, from 0 to `most`."""
        text = self.query.get(name, "")
        if text and not (text.isdecimal() and len(text) < 20):
            raise PageError("400 Bad Request", f"{name}: {text!r} is not a whole number")
        return min(int(text), most) if text else default

    @property
    def page(self) -> int:
        """The page of a list that is requested, from 1 on."""
        return max(self.number("page", 1, _PAGES_MAX), 1)


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a query or a form. Raises PageError for too many."""
    try:
        fields = parse_qs(text, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise PageError("400 Bad Request", f"more than {_FIELDS_MAX} fields") from None
    return {name: values[-1] for name, values in fields.items()}


def json_reply(value: object) -> Reply:
    """Return a response for the script of a page."""
    return Reply("200 OK", "application/json", json.dumps(value).encode())
