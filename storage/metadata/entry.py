"""One entry of the metadata log as the bytes of an object, and its name.

The bytes are JSON that begins with `{"crc32c":"xxxxxxxx",`: the CRC-32C, in hex, of all that
follows.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from lakehead.storage.errors import CorruptObject, EntryRejected
from lakehead.storage.format.checked_json import has_checksum, with_checksum
from lakehead.storage.format.feature_level import refuse_newer, unknown_here
from lakehead.storage.metadata.records import Entry, EntryVersion, Record

PREFIX = "meta/log/"
_SUFFIX = ".json"
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
        body = with_checksum(msgspec.json.encode(entry))
        if decode_entry("entry", body) == entry:
            return body
    except (CorruptObject, ValueError, OverflowError) as error:
        raise EntryRejected(f"a record cannot be stored: {error}") from error
    raise EntryRejected("a record cannot be stored as it is")


def decode_entry(key: str, body: bytes) -> Entry:
    """Return the entry in `body`. Raises CorruptObject; UnsupportedFormat for a version, a type of
    record or a field that this release does not know: a newer one wrote it.
    """
    is_checked = has_checksum(key, body)
    try:
        refuse_newer(key, msgspec.json.decode(body, type=EntryVersion).version)
        if not is_checked:
            raise CorruptObject(key, 0, "no checksum")
        return msgspec.json.decode(body, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if is_checked:
            _refuse_unknown(key, body)
        found = _BYTE.search(str(error))
        raise CorruptObject(key, int(found[1]) if found else 0, str(error)) from error


def _refuse_unknown(key: str, body: bytes) -> None:
    """Raise UnsupportedFormat if what keeps an entry from being read is that this release does not
    know a type of record or a field in it. Damage it is not: the checksum is right.
    """
    try:
        records = msgspec.json.decode(body)["records"]
        for record in records:
            kind, known = record["type"], _record_types()
            if kind not in known:
                raise unknown_here(key, f"a record {kind}")
            path = _unknown_field(record, known[kind])
            if path:
                raise unknown_here(key, f"a field {kind}.{path}")
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return  # it is not an entry


@cache
def _record_types() -> Mapping[str, msgspec.inspect.Type]:
    union = msgspec.inspect.type_info(Record)
    assert isinstance(union, msgspec.inspect.UnionType)
    types = [one for one in union.types if isinstance(one, msgspec.inspect.StructType)]
    return {str(one.tag): one for one in types}


def _unknown_field(value: Any, known: msgspec.inspect.Type) -> str:
    """Return the path to the first field that a type does not have; empty: it has them all."""
    if isinstance(known, msgspec.inspect.VarTupleType) and isinstance(value, list):
        paths = (_unknown_field(item, known.item_type) for item in value)
        return next(filter(None, paths), "")
    if not isinstance(known, msgspec.inspect.StructType) or not isinstance(value, dict):
        return ""
    fields = {one.encode_name: one.type for one in known.fields}
    for name, item in value.items():
        if name == known.tag_field:
            continue
        if name not in fields:
            return str(name)
        if inner := _unknown_field(item, fields[name]):
            return f"{name}.{inner}"
    return ""
