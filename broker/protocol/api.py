"""The definition of a Kafka API: its key, versions, message classes and header flavours.

A module of `lakehead.broker.api` opens with `API = Api(key=…, name=…, versions=(first, last))`. It
has a function `handle(request, context)`, plain or `async`, that returns the response entity of the
request's version. The APIs that carry records, and heartbeats, have `start(frame, header, context)`
instead, which reads the frame itself.
"""

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from kio.index import load_payload_module
from kio.static.constants import EntityType

from lakehead.broker.security.access import Access

API_VERSIONS_KEY = 18

Handler = Callable[..., Any | Awaitable[Any]]
"""Called with the request and its `lakehead.broker.request_context.RequestContext`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API as served: `versions` is (first, last), inclusive.

    `advertised_from` is the first version that ApiVersions lists, where it is lower than what is
    served (Produce: KAFKA-18659). One that `is_internal` is not listed: nodes alone use it.
    One that `is_at_once` handles a request, or begins to, in one turn of the event loop, which a
    lower limit of elements keeps short (`lakehead.broker.api.turns`).

    `access` has its authorisation checks, in their order. An API without
    checks says in `open_to_all` why it has none.
    """

    key: int
    name: str
    versions: tuple[int, int]
    advertised_from: int | None = None
    is_internal: bool = False
    is_at_once: bool = False
    records_max: int = 0
    """Array elements of a request beside those that others may have, of an API that names records.
    """
    access: tuple[Access, ...] = ()
    open_to_all: str = ""

    def serves(self, version: int) -> bool:
        """Return true if this version of the API is served."""
        return self.versions[0] <= version <= self.versions[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The message classes of one API at one version, by kio."""

    request_module: ModuleType
    response_module: ModuleType
    request_class: type[Any]
    response_class: type[Any]
    flexible_request: bool
    """True if the request header ends with tagged fields (header version 2)."""
    flexible_response: bool
    """True if the response header ends with tagged fields (header version 1)."""


@cache
def schema(key: int, version: int) -> Schema:
    """Return the message classes of (api key, version). Raises KeyError for one that kio does not
    know.
    """
    try:
        request = load_payload_module(key, version, EntityType.request)
        response = load_payload_module(key, version, EntityType.response)
    except Exception as error:
        raise KeyError((key, version)) from error
    request_class = _payload_class(request, EntityType.request)
    response_class = _payload_class(response, EntityType.response)
    return Schema(
        request_module=request,
        response_module=response,
        request_class=request_class,
        response_class=response_class,
        flexible_request=request_class.__header_schema__.__version__ >= 2,
        flexible_response=response_class.__header_schema__.__version__ >= 1,
    )


def _payload_class(module: ModuleType, kind: EntityType) -> type[Any]:
    for value in vars(module).values():
        if getattr(value, "__type__", None) is kind:
            assert isinstance(value, type)
            return value
    raise KeyError(module.__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An API with the function that serves it: `handle`, or `start` where that is set."""

    api: Api
    handle: Handler | None
    start: Callable[..., bool] | None


class Registry:
    """Every API that the broker serves, by key."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = {route.api.key: route for route in routes}
        assert len(self._routes) == len(routes), "two modules serve one api key"

    def route(self, key: int) -> Route | None:
        """Return the route of an api key, None when it is not served."""
        return self._routes.get(key)

    def apis(self) -> list[Api]:
        """Return every API, by key."""
        return [self._routes[key].api for key in sorted(self._routes)]


def load_registry(package: str, names: list[str]) -> Registry:
    """Import `package`.`name` for each name and collect their `API` and `handle`."""
    routes = []
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        if not hasattr(module, "API"):
            continue  # what several handlers share
        handle, start = getattr(module, "handle", None), getattr(module, "start", None)
        assert (handle is None) != (start is None), f"{name} has either handle or start"
        routes.append(Route(api=module.API, handle=handle, start=start))
    return Registry(routes)
