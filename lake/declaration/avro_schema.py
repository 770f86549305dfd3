"""Avro schemas: parse and validate them as Avro's Java library does (1.12).

Confluent's registry parses with `Schema.Parser` (strict names, defaults checked) and stores the
result of `Schema.toString()`. So every Java consumer can read a schema registered here, and a
schema that differs only in whitespace, in the order of attributes or in full instead of short names
is the same schema with the same id. Rules: Avro 1.12, "Schema Declaration" and "Names". Java is
more lenient than the specification in places (an invalid logical type is an ordinary property, a
type may be named before it is defined), and so is this module.

Defaults are those that `Schema.isValidDefault` accepts: a default of a union may be of any of its
branches, text stands for numbers of float and double, and text of any content for bytes, fixed and
enums.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_TYPE_ATTRIBUTES = frozenset(
    ("type", "name", "namespace", "doc", "fields", "aliases", "items", "values", "symbols", "size")
)
_FIELD_ATTRIBUTES = frozenset(("type", "name", "doc", "default", "order", "aliases"))
_ORDERS = ("ascending", "descending", "ignore")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|/\*.*?\*/|//[^\n\r]*', re.DOTALL)
_LONG = 1 << 63
_SIZE_MAX = (1 << 31) - 9
"""The longest array of bytes that Java's virtual machines make."""


class MalformedAvro(ValueError):
    """Avro's Java library refuses the schema; the message is the reason."""


@dataclass(frozen=True, slots=True)
class AvroModel:
    """A schema, and the named types in it and in those it refers to.

    A type is the name of a primitive or the full name of a named type (text), a union (a list), or
    an object with its `type`; each named type stands in `named` alone. `properties` of an object
    are the attributes that Avro does not define.
    """

    root: Any
    named: Mapping[str, Any]
    outside: frozenset[str] = frozenset()
    """The names of those that the others define."""


def parse_avro(text: str, others: Sequence[str] = ()) -> AvroModel:
    """Read a schema that may use the named types of `others`, each after those that it uses itself.

    Raises MalformedAvro.
    """
    return read_avro(lambda: load_avro(text), [partial(load_avro, other) for other in others])


def read_avro(root: Callable[[], Any], others: Sequence[Callable[[], Any]]) -> AvroModel:
    """Do as `parse_avro` with schemas that are JSON's values already, once each is called.

    Raises MalformedAvro, also for a ValueError of the calls.
    """
    reader = _Reader()
    try:
        for other in others:
            reader.schema(other())
        known = frozenset(reader.named)
        return AvroModel(reader.schema(root()), reader.named, known)
    except ValueError as error:
        raise MalformedAvro(" ".join(str(error).split())[:300]) from None
    except RecursionError:
        raise MalformedAvro("nested too deep") from None


def load_avro(text: str) -> Any:
    """Return JSON, in which comments may stand as in Java's and C's, though not behind its end.

    Raises ValueError, RecursionError.
    """
    plain = text
    if "/" in text:
        plain = _COMMENT.sub(lambda found: found[1] or " " * len(found[0]), text)
        if text[len(plain.rstrip()) :].strip():
            raise MalformedAvro("a comment stands behind the schema")
    loaded = json.loads(plain, parse_constant=_refused_constant)
    json.dumps(loaded, allow_nan=False)  # 1e999 is read as infinity, which JSON cannot write
    return loaded


def _refused_constant(constant: str) -> Any:
    raise MalformedAvro(f"{constant} is not JSON")


class _Reader:
    """Schemas that know each other's named types, one after the other."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self._unions: list[list[Any]] = []
        self._fields: list[Mapping[str, Any]] = []
        self._used: list[str] = []

    def schema(self, given: Any) -> Any:
        """Read a schema whole: each name that it uses is defined at its end."""
        root = self._type(given, "")
        for name in self._used:
            if name not in self.named:
                raise MalformedAvro(f"undefined name {name!r}")
        for branches in self._unions:
            self._check_union(branches)
        for field in self._fields:
            check_default(field, self.named)
        return root

    def _type(self, given: Any, space: str) -> Any:
        if isinstance(given, str):
            return self._found(given, space)
        if isinstance(given, list):
            branches = [self._type(each, space) for each in given]
            self._check_union(branches)
            self._unions.append(branches)
            return branches
        if not isinstance(given, dict):
            raise MalformedAvro(f"a schema is text, an object or a list: {_shown(given)}")
        kind = _text(given, "type")
        if kind is None:
            raise MalformedAvro(f"no type: {_shown(given)}")
        match kind:
            case "record" | "error":
                return self._record(given, space)
            case "enum":
                return self._enum(given, space)
            case "fixed":
                return self._fixed(given, space)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                if inner not in given:
                    raise MalformedAvro(f"{kind} without {inner}: {_shown(given)}")
                node = {"type": kind, inner: self._type(given[inner], space)}
            case _ if kind in PRIMITIVES:
                node = {"type": kind}
            case _:
                return self._found(kind, space)
        node["properties"] = _properties(given, _TYPE_ATTRIBUTES)
        if kind in ("array", "map"):
            _check_numbers(node["properties"])
        return node

    def _found(self, name: str, space: str) -> str:
        """A name as it is meant here: within its name space, or else as it stands."""
        if name in PRIMITIVES:
            return name
        full = f"{space}.{name}" if space and "." not in name else name
        if full not in self.named and name in self.named:
            return name
        self._used.append(full)
        return full

    def _record(self, given: dict[str, Any], outer: str) -> str:
        node = self._named(given, outer)
        full: str = node["name"]
        space = name_space(full)
        if full in self.named:
            raise MalformedAvro(f"{full} is defined twice")
        self.named[full] = node
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise MalformedAvro(f"a record without fields: {full}")
        read: dict[str, Any] = {}
        for each in fields:
            field = self._field(each, space)
            if field["name"] in read:
                raise MalformedAvro(f"field {field['name']} twice in record {full}")
            read[field["name"]] = field
        node["fields"] = list(read.values())
        self._finished(node, given, _TYPE_ATTRIBUTES)
        _check_numbers(node["properties"])
        return full

    def _field(self, given: Any, space: str) -> dict[str, Any]:
        if not isinstance(given, dict) or _text(given, "name") is None:
            raise MalformedAvro(f"no field name: {_shown(given)}")
        name = given["name"]
        if "type" not in given:
            raise MalformedAvro(f"no type of field {name}")
        field = {"name": name, "type": self._type(given["type"], space)}
        if (doc := _text(given, "doc")) is not None:
            field["doc"] = doc
        order = given.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise MalformedAvro(f"order of field {name} is {_shown(order)}, not one of {_ORDERS}")
        field["order"] = order.lower()
        _check_name(name, "field name")
        if "default" in given:
            field["default"] = read_default(field, given["default"])
            check_default(field, self.named)
            self._fields.append(field)
        field["properties"] = _properties(given, _FIELD_ATTRIBUTES)
        field["aliases"] = _aliases(given)
        return field

    def _enum(self, given: dict[str, Any], outer: str) -> str:
        node = self._named(given, outer)
        symbols = given.get("symbols")
        if not isinstance(symbols, list):
            raise MalformedAvro(f"an enum without symbols: {node['name']}")
        for symbol in symbols:
            _check_name(symbol, "symbol")
        if len(set(symbols)) < len(symbols):
            raise MalformedAvro(f"a symbol twice in enum {node['name']}")
        node["symbols"] = symbols
        if (default := _text(given, "default")) is not None:
            if default not in symbols:
                raise MalformedAvro(f"default {default!r} is not a symbol of enum {node['name']}")
            node["default"] = default
        return self._defined(node, given, _TYPE_ATTRIBUTES | {"default"})

    def _fixed(self, given: dict[str, Any], outer: str) -> str:
        node = self._named(given, outer)
        size = given.get("size")
        if type(size) is not int or not 0 <= size <= _SIZE_MAX:
            raise MalformedAvro(f"size of fixed {node['name']} is {_shown(size)}")
        node["size"] = size
        return self._defined(node, given, _TYPE_ATTRIBUTES)

    def _defined(self, node: dict[str, Any], given: dict[str, Any], known: frozenset[str]) -> str:
        """Keep an enum or a fixed. The same one may be defined again, as Java has it."""
        before = self.named.get(node["name"])
        if before is None:
            self.named[node["name"]] = node
            return self._finished(node, given, known)
        for attribute in ("type", "symbols", "size"):
            if before.get(attribute) != node.get(attribute) or before["properties"]:
                raise MalformedAvro(f"{node['name']} is defined twice, differently")
        return self._finished(dict(node), given, known)

    def _named(self, given: dict[str, Any], outer: str) -> dict[str, Any]:
        """Check the fields that all named types have, before those of each kind."""
        name = _text(given, "name")
        if name is None:
            raise MalformedAvro(f"no name: {_shown(given)}")
        space = _text(given, "namespace")
        full = _full(name, outer if space is None else space)
        for part in name_space(full).split(".") if name_space(full) else ():
            _check_name(part, "part of a name space")
        if full in PRIMITIVES:
            raise MalformedAvro(f"a type may not have the name of a primitive: {full}")
        node: dict[str, Any] = {"type": given["type"], "name": full}
        if (doc := _text(given, "doc")) is not None:
            node["doc"] = doc
        return node

    def _finished(self, node: dict[str, Any], given: dict[str, Any], known: frozenset[str]) -> str:
        node["properties"] = _properties(given, known)
        space = name_space(node["name"])
        node["aliases"] = list(dict.fromkeys(_full(each, space) for each in _aliases(given)))
        return str(node["name"])

    def _check_union(self, branches: list[Any]) -> None:
        seen = set()
        for each in branches:
            if isinstance(each, list):
                raise MalformedAvro("a union right inside another union")
            name = each if isinstance(each, str) else each["type"]
            is_known = not isinstance(each, str) or each in PRIMITIVES or each in self.named
            if is_known and name in seen:
                raise MalformedAvro(f"{name} is in a union twice")
            seen.add(name)


def _text(given: Mapping[str, Any], attribute: str) -> str | None:
    """An attribute that is text; as in Java, one that is anything else counts as absent."""
    found = given.get(attribute)
    return found if isinstance(found, str) else None


def _properties(given: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in known}


def _check_numbers(properties: Mapping[str, Any]) -> None:
    """Properties of records, arrays and maps are Java's values: their integers are longs."""
    for name, value in properties.items():
        if isinstance(value, int) and not -_LONG <= value < _LONG:
            raise MalformedAvro(f"property {name} is beyond the range of a long: {value}")


def _aliases(given: Mapping[str, Any]) -> list[str]:
    found = given.get("aliases", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise MalformedAvro(f"aliases are not a list of names: {_shown(found)}")
    return list(dict.fromkeys(found))


def _full(name: str, space: str) -> str:
    """The full name: a name with a dot has its own name space, before the last dot."""
    own, dot, bare = name.rpartition(".")
    _check_name(bare, "name")
    space = own if dot else space
    return f"{space}.{bare}" if space else bare


def name_space(full: str) -> str:
    """Return what stands before the last dot of a full name."""
    return full.rpartition(".")[0]


def _check_name(name: Any, role: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise MalformedAvro(f"{role} {_shown(name)} is not a name")


def _shown(given: Any) -> str:
    return json.dumps(given)[:100]


_NUMBER = re.compile(
    r"[\x00-\x20]*([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?[\x00-\x20]*"
)
_INT = 1 << 31


def read_default(field: Mapping[str, Any], given: Any) -> Any:
    """Return a field's default; text that stands for a float or a double is a number.

    Raises ValueError for text that is not a number, and for numbers that JSON does not have.
    """
    node = field["type"]
    kind = node["type"] if isinstance(node, dict) else node
    if kind not in ("float", "double") or not isinstance(given, str):
        return given
    found = _NUMBER.fullmatch(given)
    value = float(found[1]) if found else math.nan
    if not math.isfinite(value):
        raise ValueError(f"default of field {field['name']} is not a number: {given[:100]!r}")
    return value


def check_default(field: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raise ValueError if the default of a field is not a value of its type.

    A named type that is defined further on takes any object until then.
    """
    if not is_value(field["type"], field["default"], named):
        raise ValueError(f"default of field {field['name']} is not a value of its type")


def is_value(node: Any, value: Any, named: Mapping[str, Any]) -> bool:
    """Return true if a default may be of a type, which is a type of an `AvroModel` with its
    `named`.
    """
    if isinstance(node, list):
        return any(is_value(each, value, named) for each in node)
    kind = node
    if isinstance(node, dict):
        kind = node["type"]
    elif node in named:
        node = named[node]
        kind = node["type"]
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = _INT if kind == "int" else _LONG
            return type(value) is int and -limit <= value < limit
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string" | "bytes" | "enum" | "fixed":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list) and all(
                is_value(node["items"], each, named) for each in value
            )
        case "map":
            return isinstance(value, dict) and all(
                is_value(node["values"], each, named) for each in value.values()
            )
        case _:
            return isinstance(value, dict) and _is_record(node, value, named)


def _is_record(node: Any, value: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    if isinstance(node, str):
        return True  # defined further on
    if "fields" not in node:
        raise ValueError(f"a default of record {node['name']} inside itself")
    for field in node["fields"]:
        if field["name"] in value:
            given = value[field["name"]]
        elif "default" in field:
            given = field["default"]
        else:
            return False
        if not is_value(field["type"], given, named):
            return False
    return True
