"""The endpoints of nodes in Produce and Fetch responses, beside the new leader of a partition
(KIP-951): the client goes there without a request for metadata.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from lakehead.broker.protocol.encode import compact_text
from lakehead.storage.format.varint import encode_uvarint

_INT32 = struct.Struct(">i")


class Address(NamedTuple):
    """The address that a client connects to."""

    host: str
    port: int


class NodeEndpoint(NamedTuple):
    """One node."""

    node_id: int
    host: str
    port: int
    rack: str | None


def tagged_endpoints(endpoints: Iterable[NodeEndpoint]) -> bytes:
    """Return the tagged fields at the end of a response: the nodes, or nothing."""
    nodes = [
        _INT32.pack(node.node_id)
        + compact_text(node.host)
        + _INT32.pack(node.port)
        + compact_text(node.rack)
        + b"\x00"
        for node in endpoints
    ]
    if not nodes:
        return b"\x00"
    field = encode_uvarint(len(nodes) + 1) + b"".join(nodes)
    return b"\x01\x00" + encode_uvarint(len(field)) + field
