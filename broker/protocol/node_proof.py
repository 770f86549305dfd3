"""The proof that a request comes from a node of the cluster, until nodes have certificates.

Every node reads a secret in the metadata (`NodeSecret`); clients do not read the store. A request
between nodes bears a keyed hash in a tagged field of its header (number 10001, 16 bytes; KIP-482
makes readers skip tags that they do not know)::

    BLAKE2b, 16 bytes, keyed with the secret, of
    api key i16, version i16, correlation id i32, id of the receiving node i32, body

The secret itself is never sent, and a proof is invalid at another node. It does not hide the
content, and an eavesdropper can repeat a request to the same node: that waits for TLS.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass

from lakehead.broker.protocol.decode import Cursor

_TAG, _SIZE = 10_001, 16
_HEAD = struct.Struct(">hhii")
_NO_TAGS = b"\x00"
_BEFORE = b"\x01" + bytes([_TAG & 0x7F | 0x80, _TAG >> 7, _SIZE])
"""One tagged field, its number and its size, as unsigned variable-length numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProof:
    """Proves requests to node `to_node` by the cluster's `secret`; an empty one proves nothing."""

    secret: str
    to_node: int

    def tags(self, key: int, version: int, correlation_id: int, body: bytes) -> bytes:
        """Return the tagged fields of the header of a request."""
        if not self.secret:
            return _NO_TAGS
        return _BEFORE + self._hash(key, version, correlation_id, body)

    def is_given(
        self, key: int, version: int, correlation_id: int, body: memoryview, given: bytes
    ) -> bool:
        """Return true if `given` proves such a request. Without a secret nothing is proven."""
        if not self.secret or len(given) != _SIZE:
            return False
        return hmac.compare_digest(given, self._hash(key, version, correlation_id, body))

    def _hash(self, key: int, version: int, correlation_id: int, body: bytes | memoryview) -> bytes:
        keyed = hashlib.blake2b(key=bytes.fromhex(self.secret), digest_size=_SIZE)
        keyed.update(_HEAD.pack(key, version, correlation_id, self.to_node))
        keyed.update(body)
        return keyed.digest()


NO_PROOF = NodeProof(secret="", to_node=-1)
"""Of a request to a cluster without a secret."""


def proof_in_tags(cursor: Cursor) -> bytes:
    """Read the tagged fields of a header; return the proof, empty if there is none. Raises
    MalformedFrame.
    """
    found = b""
    for _ in range(cursor.tags()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        data = cursor.take(size)
        if tag == _TAG and size == _SIZE:
            found = bytes(data)
    return found
