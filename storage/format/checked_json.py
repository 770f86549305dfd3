"""JSON objects that begin with the CRC-32C, in hex, of all that follows:
`{"crc32c":"89abcdef",…}`.
"""

from crc32c import crc32c

from lakehead.storage.errors import CorruptObject

_HEAD = b'{"crc32c":"%08x",'
_HEAD_SIZE = len(_HEAD % 0)


def with_checksum(json: bytes) -> bytes:
    """Return a JSON object, which has a field at least, with its checksum in front."""
    rest = json[1:]
    return _HEAD % crc32c(rest) + rest


def has_checksum(key: str, body: bytes) -> bool:
    """Return true if an object begins with a checksum. Raises CorruptObject if it is wrong."""
    found = body.startswith(_HEAD[: _HEAD.index(b"%")])
    if found and body[:_HEAD_SIZE] != _HEAD % crc32c(body[_HEAD_SIZE:]):
        raise CorruptObject(key, 0, f"{len(body)} bytes do not match their checksum")
    return found
