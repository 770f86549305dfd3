"""JSON objects that begin with the CRC-32C, in hex, of all that follows:
`{"crc32c":"89abcdef",…}`.
"""

from typing import TypeVar

import msgspec
from crc32c import crc32c

from lakehead.storage.errors import CorruptObject, UnsupportedFormat

T = TypeVar("T", bound=msgspec.Struct)
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


class _Version(msgspec.Struct, frozen=True):
    version: int


def decode_checked(key: str, body: bytes, kind: type[T], *, newest: int) -> T:
    """Return the value of an object that has a checksum and a `version`; `newest` is the greatest
    that this release reads. Raises CorruptObject, UnsupportedFormat.
    """
    is_checked = has_checksum(key, body)
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version > newest:
            raise UnsupportedFormat(
                f"{key} has version {version}, newer than this release: upgrade"
            )
        if not is_checked:
            raise CorruptObject(key, 0, "no checksum")
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptObject(key, 0, str(error)) from error
