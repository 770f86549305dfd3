"""From a whole frame to the module of `lakehead.broker.api` that serves it, and back to the
connection.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from lakehead.broker.api.turns import elements_max, is_long
from lakehead.broker.network.connection import Connection, Slot
from lakehead.broker.network.request_memory import UNCHARGED_FRAME
from lakehead.broker.protocol.api import Registry, Route
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import RequestHeader, encode_response, read_header
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.quota.request_quota import RequestQuota
from lakehead.broker.request_context import Deferred, RequestContext
from lakehead.broker.services import BrokerServices
from lakehead.storage.latency import LatencyHistogram, Timing

if TYPE_CHECKING:
    from lakehead.broker.telemetry.request_traces import RequestTraces

DECODE_INLINE_MAX = 64 << 10
"""Longer control requests are decoded off the event loop, so that they delay no other request."""
OPENING_MAX = UNCHARGED_FRAME
"""A longer header is read each time: a connection keeps its opening as long as it lasts, and no
memory is charged for that.
"""

_UNLIMITED = nullcontext()
_log = structlog.get_logger("broker.network")


class RequestOpening:
    """The opening of a connection's last request with records: its header, as bytes and as read,
    and its context. The next requests repeat it, but for the correlation id.
    """

    __slots__ = ("_after", "_before", "_end", "context", "header", "route")

    def __init__(
        self, data: bytes, header: RequestHeader, route: Route, context: RequestContext
    ) -> None:
        self._before, self._after, self._end = data[:4], data[8:], len(data)
        self.header = header
        self.route = route
        self.context = context

    def is_repeated(self, frame: memoryview, connection: Connection) -> bool:
        """Return true if a frame begins with the same header, and has the same client."""
        return (
            frame[:4] == self._before
            and frame[8 : self._end] == self._after
            and connection.principal is self.context.principal
        )


class Dispatcher:
    """Starts requests. One for each node; `serve` comes before the first request. `on_crash` is
    called with an unexpected error of a request, before its connection is closed.
    """

    _services: BrokerServices

    def __init__(
        self, registry: Registry, on_crash: Callable[[Exception], None] | None = None
    ) -> None:
        self.traces: RequestTraces | None = None
        """Set where requests may be traced."""
        self.registry = registry
        self._on_crash = on_crash
        self.requests_total: Counter[str] = Counter()
        self.latencies: dict[str, LatencyHistogram] = {}
        """Of each API that was requested, from the whole request to its response."""
        self.failed_total: int = 0
        self.cut_off_total: int = 0
        """Requests that were not served, since their access rules could not be read."""

    def serve(self, services: BrokerServices) -> None:
        """Serve requests by `services`, which need this dispatcher to be made first."""
        self._services = services

    def __call__(self, connection: Connection, frame: bytearray) -> bool:
        """Start the request of a frame; see `FrameHandler`."""
        view = memoryview(frame)
        try:
            connection.timing = None
            if connection.gate is not None and connection.gate.takes(frame):
                return True
            header, route, context = self._opened(connection, view)
            self.requests_total[route.api.name] += 1
            connection.timing = self._timing(header, route, context)
            if self._services.authorizer.is_enabled and self._awaits_rules(route, context):
                self._services.scope.spawn_apart(
                    self._start_by_rules(view, header, route, context),
                    name="read the access rules",
                    on_error=partial(self.crashed, connection),
                )
                return False
            return self._start(view, header, route, context)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._reject(connection, error)
        except Exception as error:  # noqa: BLE001  # the root of a request
            self.crashed(connection, error)
        return True

    def _opened(
        self, connection: Connection, frame: memoryview
    ) -> tuple[RequestHeader, Route, RequestContext]:
        """Return the header of a request, the module that serves it, and its context. Raises
        MalformedFrame, UnsupportedVersion.
        """
        known = connection.last_opening
        if isinstance(known, RequestOpening) and known.is_repeated(frame, connection):
            header, route, context = known.header, known.route, known.context
            if self._services.quotas.of(context.principal.name, context.client_id) is None:
                return header.repeated(frame), route, context
        header = read_header(frame, self.registry)
        found = self.registry.route(header.key)
        assert found is not None
        if not connection.is_authenticated:
            raise MalformedFrame(f"api key {header.key} before authentication")
        context = self._context(connection, header, frame, found)
        is_short = header.body <= OPENING_MAX and not header.proof
        if found.start is not None and context.quota is None and is_short:
            opening = RequestOpening(bytes(frame[: header.body]), header, found, context)
            connection.last_opening = opening
        return header, found, context

    def respond(self, connection: Connection, header: RequestHeader, frame: memoryview) -> Any:
        """Return the response to a request that is handled at once. Raises MalformedFrame."""
        route = self.registry.route(header.key)
        assert route is not None
        assert route.handle is not None
        self.requests_total[route.api.name] += 1
        context = self._context(connection, header, frame, route)
        elements = elements_max(self._services, route.api)
        return route.handle(self._decode(frame, header, elements), context)

    def _context(
        self, connection: Connection, header: RequestHeader, frame: memoryview, route: Route
    ) -> RequestContext:
        services = self._services
        is_from_node = (
            bool(header.proof) and connection.is_between_nodes and self._is_from_node(header, frame)
        )
        client = services.quotas.of(connection.principal.name, header.client_id)
        quota = None
        if client is not None and not is_from_node:
            quota = RequestQuota(client, connection.throttle)
        return RequestContext(
            api=route.api,
            version=header.version,
            client_id=header.client_id,
            client_host=connection.client_host,
            services=services,
            connection=connection,
            listener=connection.listener.name,
            principal=connection.principal,
            is_from_node=is_from_node,
            quota=quota,
        )

    def _timing(self, header: RequestHeader, route: Route, context: RequestContext) -> Timing:
        """Return the timing of a request that begins now."""
        name = route.api.name
        latency = self.latencies.get(name)
        if latency is None:
            latency = self.latencies[name] = LatencyHistogram()
        if self.traces is not None and self.traces.is_traced(header.client_id):
            return self.traces.begin(latency, name, header, context.client_host)
        return Timing(latency, self._services.clock)

    async def handle_own(self, key: int, version: int, request: Any) -> Any:
        """Handle a request of this node to itself, for an API that carries no records; return the
        response. Raises UnsupportedVersion.
        """
        route = self.registry.route(key)
        if route is None or route.handle is None or not route.api.serves(version):
            raise UnsupportedVersion(f"api key {key} version {version} is not served to this node")
        context = RequestContext(
            api=route.api,
            version=version,
            client_id=None,
            client_host="",
            services=self._services,
            connection=None,
            is_from_node=True,
        )
        response = route.handle(request, context)
        return await response if inspect.isawaitable(response) else response

    def _start(
        self, frame: memoryview, header: RequestHeader, route: Route, context: RequestContext
    ) -> bool:
        if context.quota is None:
            return self._start_now(frame, header, route, context)
        with context.quota:
            return self._start_now(frame, header, route, context)

    def _start_now(
        self, frame: memoryview, header: RequestHeader, route: Route, context: RequestContext
    ) -> bool:
        if route.start is not None:
            return route.start(frame, header, context)
        self._start_control(frame, header, route, context, context.connection.slot())
        return True

    def _awaits_rules(self, route: Route, context: RequestContext) -> bool:
        """Return true for a request that access rules decide on, where there are some, if this node
        does not know whether it has those that are in force.
        """
        if context.is_from_node:
            return False
        is_decided = bool(route.api.access) and not route.api.is_internal
        return is_decided and not self._services.session.is_state_current()

    async def _start_by_rules(
        self, frame: memoryview, header: RequestHeader, route: Route, context: RequestContext
    ) -> None:
        """Start a request once the rules are known. A node that is cut off closes the connection
        instead: another node may serve the client.
        """
        connection: Connection = context.connection
        if not await self._services.session.ensure_state():
            self.cut_off_total += 1
            connection.abort()
            return
        try:
            if connection.is_open and self._start(frame, header, route, context):
                connection.proceed()
        except (MalformedFrame, UnsupportedVersion) as error:
            self._reject(connection, error)

    def _start_control(
        self,
        frame: memoryview,
        header: RequestHeader,
        route: Route,
        context: RequestContext,
        slot: Slot,
    ) -> None:
        assert route.handle is not None
        if len(frame) > DECODE_INLINE_MAX:
            work = self._decode_and_handle(frame, header, route, context)
            self._spawn(work, header, context, slot)
            return
        elements = elements_max(self._services, route.api)
        response = route.handle(self._decode(frame, header, elements), context)
        if isinstance(response, Deferred):
            self._defer(response, header, context, slot)
        elif inspect.isawaitable(response):
            self._spawn(response, header, context, slot)
        else:
            self._respond(slot, header, context, response)

    def _is_from_node(self, header: RequestHeader, frame: memoryview) -> bool:
        own = NodeProof(secret=self._services.state.node_secret, to_node=self._services.node_id)
        return own.is_given(
            header.key, header.version, header.correlation_id, frame[header.body :], header.proof
        )

    @staticmethod
    def _decode(frame: memoryview, header: RequestHeader, elements: int) -> Any:
        if header.body == len(frame) and not header.schema.request_class.__dataclass_fields__:
            return header.schema.request_class()
        return decode(header.schema.request_class, frame, header.body, elements)

    async def _decode_and_handle(
        self, frame: memoryview, header: RequestHeader, route: Route, context: RequestContext
    ) -> Any:
        loop = asyncio.get_running_loop()
        elements = elements_max(self._services, route.api)
        decode = self._decode if context.quota is None else context.quota.aside(self._decode)
        request = await loop.run_in_executor(None, decode, frame, header, elements)
        assert route.handle is not None
        response = route.handle(request, context)
        return await response if inspect.isawaitable(response) else response

    def _spawn(
        self, response: Awaitable[Any], header: RequestHeader, context: RequestContext, slot: Slot
    ) -> None:
        task = self._services.scope.spawn_apart(
            self._run(response, header, context, slot),
            name=f"request {header.schema.request_class.__name__}",
            on_error=partial(self.crashed, slot.connection),
        )
        if inspect.iscoroutine(response):  # one that is cancelled before it began is not left over
            task.add_done_callback(lambda _: response.close())
        slot.cancel = task.cancel

    def _defer(
        self, response: Deferred, header: RequestHeader, context: RequestContext, slot: Slot
    ) -> None:
        def done(outcome: asyncio.Future[Any]) -> None:
            if outcome.cancelled():
                return
            try:
                with context.quota or _UNLIMITED:
                    self._respond(slot, header, context, response.finish(outcome))
            except Exception as error:  # noqa: BLE001  # the root of a request
                self.crashed(slot.connection, error)

        slot.cancel = response.outcome.cancel
        response.outcome.add_done_callback(done)

    async def _run(
        self, response: Awaitable[Any], header: RequestHeader, context: RequestContext, slot: Slot
    ) -> None:
        connection, quota = slot.connection, context.quota
        try:
            if quota is not None:
                response = quota.steps_of(response)
            await self._respond_at_length(slot, header, context, await response)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._reject(connection, error)

    def _respond(
        self, slot: Slot, header: RequestHeader, context: RequestContext, response: Any
    ) -> None:
        if is_long(response):
            self._spawn(_ready(response), header, context, slot)
            return
        if context.quota is not None:
            response = _throttled(response, context.quota)
        slot.complete([encode_response(response, header.correlation_id)])

    @staticmethod
    async def _respond_at_length(
        slot: Slot, header: RequestHeader, context: RequestContext, response: Any
    ) -> None:
        """Encode a response off the event loop when it is long."""
        correlation_id, encode = header.correlation_id, encode_response
        if context.quota is not None:
            response = _throttled(response, context.quota)
            encode = context.quota.aside(encode)
        if is_long(response):
            loop = asyncio.get_running_loop()
            frame = await loop.run_in_executor(None, encode, response, correlation_id)
        else:
            frame = encode(response, correlation_id)
        with context.quota or _UNLIMITED:
            slot.complete([frame])

    def _reject(self, connection: Connection, error: Exception) -> None:
        self._services.rejected(connection, str(error))

    def crashed(self, connection: Connection, error: Exception) -> None:
        """Close the connection: the client retries, and got no false response."""
        self.failed_total += 1
        if self._on_crash is not None:
            self._on_crash(error)
        _log.error("request_failed", client_host=connection.client_host, exc_info=error)
        connection.abort()


async def _ready(response: Any) -> Any:
    return response


def _throttled(response: Any, quota: RequestQuota) -> Any:
    """Decide how long to throttle the client; return the response that says so, if it can."""
    throttle_ms = quota.finish()
    if not throttle_ms or not hasattr(response, "throttle_time"):
        return response
    return replace(response, throttle_time=timedelta(milliseconds=throttle_ms))
