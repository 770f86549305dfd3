"""From a whole frame to the module of `lakehead.broker.api` that serves it, and back to the
connection.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable
from functools import partial
from typing import Any

import structlog

from lakehead.broker.api.turns import elements_max, is_long
from lakehead.broker.network.connection import Connection, Slot
from lakehead.broker.protocol.api import Registry, Route
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import RequestHeader, encode_response, read_header
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.request_context import Deferred, RequestContext
from lakehead.broker.services import BrokerServices

DECODE_INLINE_MAX = 64 << 10
"""Longer control requests are decoded off the event loop, so that they delay no other request."""

_log = structlog.get_logger("broker.network")


class Dispatcher:
    """Starts requests. One for each node; `serve` comes before the first request."""

    _services: BrokerServices

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.requests_total: Counter[str] = Counter()
        self.failed_total: int = 0

    def serve(self, services: BrokerServices) -> None:
        """Serve requests by `services`, which need this dispatcher to be made first."""
        self._services = services

    def __call__(self, connection: Connection, frame: bytearray) -> bool:
        """Start the request of a frame; see `FrameHandler`."""
        view = memoryview(frame)
        try:
            header = read_header(view, self.registry)
            route = self.registry.route(header.key)
            assert route is not None
            self.requests_total[route.api.name] += 1
            context = RequestContext(
                api=route.api,
                version=header.version,
                client_id=header.client_id,
                client_host=connection.client_host,
                services=self._services,
                connection=connection,
                listener=connection.listener,
                is_from_node=bool(header.proof) and self._is_from_node(header, view),
            )
            if route.start is not None:
                return route.start(view, header, context)
            self._start_control(view, header, route, context, connection.slot())
        except (MalformedFrame, UnsupportedVersion) as error:
            self._reject(connection, error)
        except Exception as error:  # noqa: BLE001  # the root of a request
            self.crashed(connection, error)
        return True

    async def answer(self, key: int, version: int, request: Any) -> Any:
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
        answer = route.handle(request, context)
        return await answer if inspect.isawaitable(answer) else answer

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
            self._spawn(self._decode_and_handle(frame, header, route, context), header, slot)
            return
        elements = elements_max(self._services, route.api)
        answer = route.handle(self._decode(frame, header, elements), context)
        if isinstance(answer, Deferred):
            self._defer(answer, header, slot)
        elif inspect.isawaitable(answer):
            self._spawn(answer, header, slot)
        else:
            self._answer(slot, header, answer)

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
        request = await loop.run_in_executor(None, self._decode, frame, header, elements)
        assert route.handle is not None
        answer = route.handle(request, context)
        return await answer if inspect.isawaitable(answer) else answer

    def _spawn(self, answer: Awaitable[Any], header: RequestHeader, slot: Slot) -> None:
        task = self._services.scope.spawn_apart(
            self._run(answer, header, slot),
            name=f"request {header.schema.request_class.__name__}",
            on_error=partial(self.crashed, slot.connection),
        )
        if inspect.iscoroutine(answer):  # one that is cancelled before it began is not left over
            task.add_done_callback(lambda _: answer.close())
        slot.cancel = task.cancel

    def _defer(self, answer: Deferred, header: RequestHeader, slot: Slot) -> None:
        def done(outcome: asyncio.Future[Any]) -> None:
            if outcome.cancelled():
                return
            try:
                self._answer(slot, header, answer.finish(outcome))
            except Exception as error:  # noqa: BLE001  # the root of a request
                self.crashed(slot.connection, error)

        slot.cancel = answer.outcome.cancel
        answer.outcome.add_done_callback(done)

    async def _run(self, answer: Awaitable[Any], header: RequestHeader, slot: Slot) -> None:
        connection = slot.connection
        try:
            await self._answer_at_length(slot, header, await answer)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._reject(connection, error)

    def _answer(self, slot: Slot, header: RequestHeader, answer: Any) -> None:
        if is_long(answer):
            self._spawn(_ready(answer), header, slot)
        else:
            slot.complete([encode_response(answer, header.correlation_id)])

    @staticmethod
    async def _answer_at_length(slot: Slot, header: RequestHeader, answer: Any) -> None:
        """Encode a response off the event loop when it is long."""
        correlation_id = header.correlation_id
        if is_long(answer):
            loop = asyncio.get_running_loop()
            frame = await loop.run_in_executor(None, encode_response, answer, correlation_id)
        else:
            frame = encode_response(answer, correlation_id)
        slot.complete([frame])

    def _reject(self, connection: Connection, error: Exception) -> None:
        self._services.rejected(connection, str(error))

    def crashed(self, connection: Connection, error: Exception) -> None:
        """Close the connection: the client retries, and got no false response."""
        self.failed_total += 1
        _log.error("request_failed", client_host=connection.client_host, exc_info=error)
        connection.abort()


async def _ready(answer: Any) -> Any:
    return answer
