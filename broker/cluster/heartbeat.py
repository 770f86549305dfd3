"""Heartbeats and their responses as bytes: Kafka's BrokerHeartbeat (key 63), version 0.

Kafka's brokers send it to their controller; here every node sends it to every other, over the
ordinary listener. Kafka's fields keep their meaning: `current_metadata_offset` is the newest entry
of the metadata log that the sender has, `want_fence` means that it does not serve yet,
`want_shut_down` that it is about to stop. All else travels as MessagePack in one tagged field
(number 10000; KIP-482 makes readers skip tags that they do not know)::

    request body    node id i32, epoch i64, newest entry i64, want fence i8, want shut down i8, tags
    response body   throttle ms i32, error i16, is caught up i8, is fenced i8, should shut down i8,
                    tags

A response names its sender, since a port may have a new tenant, and the age of the sender's state:
see `lakehead.broker.cluster.broker_lifecycle.Session`.
"""

import struct

import msgspec

from lakehead.broker.protocol.decode import Cursor
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from lakehead.storage.format.varint import encode_uvarint

API_KEY, VERSION = 63, 0
ERROR_NONE, ERROR_STALE_EPOCH, ERROR_OTHER_CLUSTER, ERROR_STRANGER = 0, 77, 104, 31
"""NONE, STALE_BROKER_EPOCH, INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""
HOTTEST_MAX = 64
"""Maximum streams whose traffic a heartbeat names."""

_TAG = 10_000
_FRAME_MAX = 256 << 10
_RATE_MAX = 1e15
_REQUEST = struct.Struct(">iqqbb")
_RESPONSE = struct.Struct(">ihbbb")
_HEADER = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")
_CLIENT_ID = b"lakehead-node"
_NEVER_MS = (1 << 63) - 1


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a node: bytes per second in and out, CPU (1.0 is a core), the busiest streams,
    each with its bytes per second in both directions together, and the price of its requests to the
    object store, in dollars an hour.
    """

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    cpu: float = 0.0
    hottest: tuple[tuple[int, float], ...] = ()
    dollars_an_hour: float = 0.0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A report that a node lives.

    `next_entry`: it has the metadata entries below this number. `is_starting`: it does not serve
    yet. `is_leaving`: it is about to stop. `heard`: the ids of other nodes that it has heard
    itself, each with the milliseconds since then. `levels`: the lowest and highest feature level
    that it supports, or None from a release that does not report them.
    """

    node_id: int
    epoch: int
    next_entry: int
    is_starting: bool = False
    is_leaving: bool = False
    cluster_id: str = ""
    incarnation: str = ""
    load: NodeLoad = NodeLoad()
    heard: tuple[tuple[int, int], ...] = ()
    levels: tuple[int, int] | None = None


class HeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of another node to a heartbeat.

    `is_known`: it has the registration of the heartbeat's sender. `is_fenced`: that epoch has
    ended. `fresh_ms`: the response reflects every entry committed up to this many milliseconds
    before it; None if unknown. `load` is set only for commands, which send as node -1. `heard` and
    `levels` are as in `Heartbeat`.
    """

    node_id: int
    epoch: int
    next_entry: int
    error: int = ERROR_NONE
    is_known: bool = False
    is_fenced: bool = False
    is_starting: bool = False
    is_leaving: bool = False
    incarnation: str = ""
    fresh_ms: int | None = None
    load: NodeLoad = NodeLoad()
    heard: tuple[tuple[int, int], ...] = ()
    levels: tuple[int, int] | None = None


# Arrays grow at their end: a reader skips elements that it does not know, and takes the default of
# those that an older writer does not send.


class _RequestExtra(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: str
    incarnation: str
    load: NodeLoad
    heard: tuple[tuple[int, int], ...]
    levels: tuple[int, int] | None = None


class _ResponseExtra(msgspec.Struct, frozen=True, array_like=True):
    node_id: int
    epoch: int
    next_entry: int
    is_starting: bool
    is_leaving: bool
    incarnation: str
    fresh_ms: int
    load: NodeLoad
    heard: tuple[tuple[int, int], ...]
    levels: tuple[int, int] | None = None


_NO_EXTRA = _RequestExtra("", "", NodeLoad(), ())
_request_extra = msgspec.msgpack.Decoder(_RequestExtra)
_response_extra = msgspec.msgpack.Decoder(_ResponseExtra)


def encode_heartbeat(
    heartbeat: Heartbeat, correlation_id: int, proof: NodeProof = NO_PROOF
) -> bytes:
    """Return the frame of a request, with its length field."""
    extra = _RequestExtra(
        heartbeat.cluster_id,
        heartbeat.incarnation,
        heartbeat.load,
        heartbeat.heard,
        heartbeat.levels,
    )
    body = _REQUEST.pack(
        heartbeat.node_id,
        heartbeat.epoch,
        heartbeat.next_entry - 1,
        heartbeat.is_starting,
        heartbeat.is_leaving,
    )
    body += _tagged(msgspec.msgpack.encode(extra))
    header = _HEADER.pack(API_KEY, VERSION, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
    return _framed(header + proof.tags(API_KEY, VERSION, correlation_id, body) + body)


def _rate(value: float) -> float:
    """Return a rate that is safe to add and divide: 0 for NaN, negative and absurdly large
    values.
    """
    return value if 0 <= value <= _RATE_MAX else 0.0


def _plausible(load: NodeLoad) -> NodeLoad:
    """Return a load that is safe to plan by, from one that another node reports."""
    hottest = load.hottest[:HOTTEST_MAX]
    return NodeLoad(
        bytes_in=_rate(load.bytes_in),
        bytes_out=_rate(load.bytes_out),
        cpu=_rate(load.cpu),
        hottest=tuple((stream_id, _rate(rate)) for stream_id, rate in hottest if stream_id >= 0),
        dollars_an_hour=_rate(load.dollars_an_hour),
    )


def decode_heartbeat(frame: memoryview, position: int) -> Heartbeat:
    """Return the request whose body is at `position`, with a plausible load.

    A request without the tagged field, as Kafka would send it, has an empty cluster id. Raises
    MalformedFrame, also for a frame that is longer than any node sends.
    """
    if len(frame) > _FRAME_MAX:
        raise MalformedFrame(f"a heartbeat of {len(frame)} bytes")
    cursor = Cursor(frame, position)
    node_id, epoch, newest, starting, leaving = _REQUEST.unpack(cursor.take(_REQUEST.size))
    data = _extra(cursor)
    try:
        extra = _NO_EXTRA if data is None else _request_extra.decode(data)
    except msgspec.MsgspecError as error:
        raise MalformedFrame(f"a heartbeat of node {node_id}: {error}") from None
    return Heartbeat(
        node_id=node_id,
        epoch=epoch,
        next_entry=newest + 1,
        is_starting=bool(starting),
        is_leaving=bool(leaving),
        cluster_id=extra.cluster_id,
        incarnation=extra.incarnation,
        load=_plausible(extra.load),
        heard=extra.heard,
        levels=extra.levels,
    )


def encode_heartbeat_response(response: HeartbeatResponse, correlation_id: int) -> bytes:
    """Return the frame of a response, with its length field."""
    extra = _ResponseExtra(
        response.node_id,
        response.epoch,
        response.next_entry,
        response.is_starting,
        response.is_leaving,
        response.incarnation,
        _NEVER_MS if response.fresh_ms is None else response.fresh_ms,
        response.load,
        response.heard,
        response.levels,
    )
    body = _RESPONSE.pack(0, response.error, response.is_known, response.is_fenced, False)
    header = _LENGTH.pack(correlation_id) + b"\x00"
    return _framed(header + body + _tagged(msgspec.msgpack.encode(extra)))


def decode_heartbeat_response(frame: memoryview) -> tuple[int, HeartbeatResponse]:
    """Return (correlation id, response) of a frame without its length field.

    Raises MalformedFrame if the sender is not a node of Lakehead.
    """
    cursor = Cursor(frame)
    correlation_id = int(cursor.fixed(_LENGTH))
    cursor.skip_tags()
    _, error, known, fenced, _ = _RESPONSE.unpack(cursor.take(_RESPONSE.size))
    data = _extra(cursor)
    if data is None:
        raise MalformedFrame("a heartbeat response without the tagged field of Lakehead")
    try:
        extra = _response_extra.decode(data)
    except msgspec.MsgspecError as failure:
        raise MalformedFrame(f"a heartbeat response: {failure}") from None
    return correlation_id, HeartbeatResponse(
        node_id=extra.node_id,
        epoch=extra.epoch,
        next_entry=extra.next_entry,
        error=error,
        is_known=bool(known),
        is_fenced=bool(fenced),
        is_starting=extra.is_starting,
        is_leaving=extra.is_leaving,
        incarnation=extra.incarnation,
        fresh_ms=None if extra.fresh_ms == _NEVER_MS else extra.fresh_ms,
        load=extra.load,
        heard=extra.heard,
        levels=extra.levels,
    )


def _framed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def _tagged(data: bytes) -> bytes:
    return b"\x01" + encode_uvarint(_TAG) + encode_uvarint(len(data)) + data


def _extra(cursor: Cursor) -> memoryview | None:
    found = None
    for _ in range(cursor.tags()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        data = cursor.take(size)
        if tag == _TAG:
            found = data
    return found
