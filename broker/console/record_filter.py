"""Filters of records: by key, by a text in key or value, by a field of the value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Conditions that a record has to meet together; an empty one is met by all. `key` is the whole
    key, `text` is in the key or the value as they were written or decoded, `field` is a path of
    names and positions with dots between (`customer.lines.0.sku`), which has the value `equal_to`,
    or any if that is empty.
    """

    key: str = ""
    text: str = ""
    field: str = ""
    equal_to: str = ""

    @property
    def is_empty(self) -> bool:
        """Return true if every record passes."""
        return not (self.key or self.text or self.field)

    def passes_key(self, key: str | None) -> bool:
        """Return true if a record with this key may pass."""
        return not self.key or key == self.key

    def passes(self, key: str | None, value: str | None) -> bool:
        """Return true for a record with these texts."""
        if not self.passes_key(key):
            return False
        if self.text and self.text not in (key or "") and self.text not in (value or ""):
            return False
        return not self.field or self._passes_field(value)

    def _passes_field(self, value: str | None) -> bool:
        if value is None or value[:1] not in {"{", "["}:
            return False
        try:
            found = _at(json.loads(value), self.field)
        except (ValueError, RecursionError):
            return False
        if found is _MISSING:
            return False
        return not self.equal_to or is_equal(found, self.equal_to)


def _at(value: Any, path: str) -> Any:
    """Return what is at a path, `_MISSING` if there is nothing."""
    if isinstance(value, Mapping) and path in value:  # a name may have dots in it
        return value[path]
    name, dot, rest = path.partition(".")
    if isinstance(value, Mapping):
        inner = value.get(name, _MISSING)
    elif isinstance(value, list) and name.isdecimal() and len(name) < 10:
        inner = value[int(name)] if int(name) < len(value) else _MISSING
    else:
        return _MISSING
    return _at(inner, rest) if dot and inner is not _MISSING else inner


def is_equal(found: Any, text: str) -> bool:
    """Return true if a value of JSON is written as `text`: words with or without quotes, numbers in
    any form.
    """
    if found == text:
        return True
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    return bool(wanted == found)
