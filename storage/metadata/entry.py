"""One entry of the metadata log as the bytes of an object, and its name.

The bytes are JSON that begins with `{"crc32c":"xxxxxxxx",`: the CRC-32C, in hex, of all that
follows.
"""

import re

import msgspec
from crc32c import crc32c

from storage.errors import CorruptObject, EntryRejected, UnsupportedFormat
from storage.metadata.records import ENTRY_VERSION, Entry, EntryVersion

PREFIX = "meta/log/"
_SUFFIX = ".json"
_HEAD = b'{"crc32c":"%08x",'
_HEAD_SIZE = len(_HEAD % 0)
_BYTE = re.compile(r"\(byte (\d+)\)")


def entry_key(number: int) -> str:
    """Return the key of entry `number`."""
    return f"{PREFIX}{number:020d}{_SUFFIX}"


def entry_number(key: str) -> int | None:
    """Return the number of the entry with this key; None when no entry is called so."""
    digits = key.removeprefix(PREFIX).removesuffix(_SUFFIX)
    return int(digits) if digits.isdecimal() and key == entry_key(int(digits)) else None


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry. Raises EntryRejected when no reader could read them back."""
    try:
        rest = msgspec.json.encode(entry)[1:]
        body = _HEAD % crc32c(rest) + rest
        if decode_entry("entry", body) == entry:
            return body
    except (CorruptObject, ValueError, OverflowError) as error:
        raise EntryRejected(f"a record cannot be stored: {error}") from error
    raise EntryRejected("a record cannot be stored as it is")


def decode_entry(key: str, body: bytes) -> Entry:
    """Return the entry in `body`. Raises CorruptObject, UnsupportedFormat (written by a newer
    release).
    """
    has_checksum = body.startswith(_HEAD[: _HEAD.index(b"%")])
    if has_checksum and body[:_HEAD_SIZE] != _HEAD % crc32c(body[_HEAD_SIZE:]):
        raise CorruptObject(key, 0, f"{len(body)} bytes do not match their checksum")
    try:
        version = msgspec.json.decode(body, type=EntryVersion).version
        if version > ENTRY_VERSION:
            raise UnsupportedFormat(
                f"{key} has version {version}, newer than this release reads ({ENTRY_VERSION}): "
                "upgrade Lakehead"
            )
        if not has_checksum:
            raise CorruptObject(key, 0, "no checksum")
        return msgspec.json.decode(body, type=Entry)
    except msgspec.DecodeError as error:
        found = _BYTE.search(str(error))
        raise CorruptObject(key, int(found[1]) if found else 0, str(error)) from error
