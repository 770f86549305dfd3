"""Request and response headers of a frame, and the encoding of response bodies.

A frame is a 4-byte length, which the connection has read already, and then: api key i16, version
i16, correlation id i32, client id (nullable string, always in the old encoding), and tagged fields
in header version 2.
"""

import struct
from typing import Any, NamedTuple

from lakehead.broker.protocol.api import API_VERSIONS_KEY, Registry, Schema, schema
from lakehead.broker.protocol.decode import Cursor
from lakehead.broker.protocol.encode import encode
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof, proof_in_tags

FRAME_MIN = 8
"""Shortest frame: key, version and correlation id."""
HEADER_TAGS_MAX = 100
"""Tagged fields of a header. Kafka has none; a header is read before a client is known."""

_FIXED = struct.Struct(">hhi")
_CLIENT_ID_LENGTH = struct.Struct(">h")
_PREFIX = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request; its body begins at `body` in the frame. `proof` shows that a node
    sent it (`lakehead.broker.protocol.node_proof`).
    """

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    schema: Schema
    proof: bytes = b""

    def repeated(self, frame: memoryview) -> "RequestHeader":
        """Return the header of a frame that has this one, but for its correlation id."""
        return tuple.__new__(RequestHeader, (*_FIXED.unpack_from(frame), *self[3:]))


def read_header(frame: memoryview, registry: Registry) -> RequestHeader:
    """Return the header of a frame.

    Raises UnsupportedVersion for an api or version that is not served, except for ApiVersions,
    whose header has the requested version and the schema of version 0; MalformedFrame for bytes
    that are not a request.
    """
    if len(frame) < FRAME_MIN:
        raise MalformedFrame(f"a frame of {len(frame)} bytes")
    key, version, correlation_id = _FIXED.unpack_from(frame)
    route = registry.route(key)
    if route is None:
        raise UnsupportedVersion(f"api key {key} version {version} is not served")
    if not route.api.serves(version):
        if key != API_VERSIONS_KEY:
            raise UnsupportedVersion(f"{route.api.name} version {version} is not served")
        return RequestHeader(key, version, correlation_id, None, len(frame), schema(key, 0))
    message = schema(key, version)
    client_id, body = _client_id(frame)
    proof = b""
    if message.flexible_request:
        if body < len(frame) and frame[body] == 0:
            body += 1
        else:
            cursor = Cursor(frame, body, HEADER_TAGS_MAX)
            proof = proof_in_tags(cursor)
            body = cursor.position
    return RequestHeader(key, version, correlation_id, client_id, body, message, proof)


def _client_id(frame: memoryview) -> tuple[str | None, int]:
    if len(frame) < FRAME_MIN + 2:
        raise MalformedFrame("a frame without client id")
    length: int = _CLIENT_ID_LENGTH.unpack_from(frame, FRAME_MIN)[0]
    start = FRAME_MIN + 2
    if length < 0:
        return None, start
    if start + length > len(frame):
        raise MalformedFrame("a client id that is longer than its frame")
    return str(frame[start : start + length], "utf-8", "replace"), start + length


def response_prefix(correlation_id: int, size: int, *, flexible: bool) -> bytes:
    """Return the length and header of a response whose body has `size` bytes."""
    if flexible:
        return _PREFIX.pack(size + 5, correlation_id) + b"\x00"
    return _PREFIX.pack(size + 4, correlation_id)


def encode_request(
    key: int, version: int, correlation_id: int, request: Any, proof: NodeProof = NO_PROOF
) -> bytes:
    """Return the whole frame, length included, of a kio request entity; without a client id."""
    data = bytes(encode(request))
    is_flexible = schema(key, version).flexible_request
    tags = proof.tags(key, version, correlation_id, data) if is_flexible else b""
    head = _FIXED.pack(key, version, correlation_id) + _CLIENT_ID_LENGTH.pack(-1) + tags
    return _LENGTH.pack(len(head) + len(data)) + head + data


def encode_response(response: Any, correlation_id: int) -> bytes:
    """Return the whole frame, length included, of a kio response entity."""
    data = encode(response)
    flexible = type(response).__header_schema__.__version__ >= 1
    return response_prefix(correlation_id, len(data), flexible=flexible) + data
