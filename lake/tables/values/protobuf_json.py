"""Google's `Struct`, `Value` and `ListValue` as the JSON that they stand for (ProtoJSON)."""

import json
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import ListValue, Struct, Value

_MESSAGES: dict[str, Any] = {each.DESCRIPTOR.full_name: each for each in (Struct, Value, ListValue)}


def message_json(name: str, content: bytes) -> str:
    """Return the JSON of a message's bytes, names in order.

    Raises ValueError for bytes that are not such a message, or a number that JSON does not have.
    """
    try:
        message = _MESSAGES[name].FromString(content)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    held = _value(message) if name.endswith(".Value") else _parts(message)
    return json.dumps(held, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _parts(message: Any) -> Any:
    if isinstance(message, ListValue):
        return [_value(each) for each in message.values]
    return {name: _value(message.fields[name]) for name in sorted(message.fields)}


def _value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    held = getattr(message, kind)
    return _parts(held) if kind in ("struct_value", "list_value") else held
