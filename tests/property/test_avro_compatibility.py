"""What the registry says of two Avro schemas against what a reader does: fastavro reads values that
were written by the one with the other.
"""

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import fastavro
from hypothesis import assume, given
from hypothesis import strategies as st

from lakehead.connectors.schema_registry.avro_schema import parse_avro, unreadable

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
VALUES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True],
    "int": [7],
    "long": [1 << 40],
    "float": [1.5],
    "double": [2.5],
    "bytes": [b"ab"],
    "string": ["ab"],
}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    """A type; named ones have names of few letters, so that two schemas often share them."""
    kinds = ["primitive", "primitive", "enum", "fixed", "array", "map", "union", "record"]
    kind = draw(st.sampled_from(kinds if depth else kinds[:4]))
    match kind:
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "enum":
            symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
            enum = {"type": "enum", "name": "TheEnum", "symbols": symbols}
            return enum | ({"default": symbols[0]} if draw(st.booleans()) else {})
        case "fixed":
            return {"type": "fixed", "name": "TheFixed", "size": draw(st.sampled_from((2, 3)))}
        case "array":
            return {"type": "array", "items": draw(types(depth=depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types(depth=depth - 1))}
        case "union":
            return draw(st.lists(types(depth=0), min_size=1, max_size=3, unique_by=_kind))
        case _:
            name = draw(st.sampled_from(("In", "Other"))) + str(depth)  # never inside itself
            return draw(records(name=name, depth=depth - 1))


def _kind(node: Any) -> str:
    return node if isinstance(node, str) else node["type"]


@st.composite
def records(draw: st.DrawFn, name: str = "R", depth: int = 2) -> Any:
    fields = []
    names = draw(st.permutations("abcd"))
    own = draw(st.integers(0, 3))
    others = list(names[own:])  # an alias that is also a field's name would say two things
    for field in names[:own]:
        node: dict[str, Any] = {"name": field, "type": draw(types(depth=depth))}
        if draw(st.booleans()):
            first = node["type"][0] if isinstance(node["type"], list) else node["type"]
            default = _default(first)
            node |= {} if default is ... else {"default": default}
        if others and draw(st.integers(0, 5)) == 0:
            node["aliases"] = [others.pop()]
        fields.append(node)
    return {"type": "record", "name": name, "fields": fields}


def _default(node: Any) -> Any:
    match node:
        case "bytes":
            return "x"
        case str():
            return VALUES[node][0]
        case {"type": "enum", "symbols": symbols}:
            return symbols[0]
        case {"type": "array"}:
            return []
        case {"type": "map"}:
            return {}
        case _:
            return ...


def one_name_once(schema: Any) -> Any:
    """The schema with the second and later definitions of a name as its name alone."""
    seen: set[str] = set()

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "name" in node and node.get("type") in ("record", "enum", "fixed"):
            if node["name"] in seen:
                return node["name"]
            seen.add(node["name"])
        found = {key: walk(value) if key in ("items", "values", "type") else value
                 for key, value in node.items()}  # fmt: skip
        if "fields" in node:
            found["fields"] = [{**field, "type": walk(field["type"])} for field in node["fields"]]
        return found

    return walk(schema)


def covering(node: Any, named: dict[str, Any]) -> list[Any]:
    """Values that take every branch of a union and every symbol of an enum at least once."""
    match node:
        case list():
            return [(_branch(each), value) for each in node for value in covering(each, named)]
        case str() if node in VALUES:
            return VALUES[node]
        case str():
            return covering(named[node], named)
        case {"type": "enum", "symbols": symbols}:
            named[node["name"]] = node
            return list(symbols)
        case {"type": "fixed", "size": size}:
            named[node["name"]] = node
            return [b"x" * size]
        case {"type": "array", "items": items}:
            return [[value] for value in covering(items, named)]
        case {"type": "map", "values": values}:
            return [{"k": value} for value in covering(values, named)]
        case _:
            named[node["name"]] = node
            columns = {each["name"]: covering(each["type"], named) for each in node["fields"]}
            count = max(map(len, columns.values()), default=1)
            return [
                {name: values[index % len(values)] for name, values in columns.items()}
                for index in range(count)
            ]


def _branch(node: Any) -> str:
    return node if isinstance(node, str) else node.get("name", node["type"])


def is_read(value: Any, writer: Any, reader: Any) -> bool:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, writer, value)
    written.seek(0)
    try:
        fastavro.schemaless_reader(written, writer, reader)
    except (fastavro.read.SchemaResolutionError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def fields_of(node: Any) -> Iterator[dict[str, Any]]:
    """The fields of all records in a schema."""
    if isinstance(node, dict):
        yield from node.get("fields", ())
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from fields_of(part)


def fits_twice(reader: Any, writer: Any) -> bool:
    """Return true if a reader's field may be one of the writer's by its name, and another by an
    alias: Avro's rule of compatibility takes the name, where a reader may be confused by the alias.
    """
    written = {each["name"] for each in fields_of(writer)}
    return any(
        each["name"] in written and not written.isdisjoint(each.get("aliases", ()))
        for each in fields_of(reader)
    )


@given(records().map(one_name_once), records().map(one_name_once))
def test_what_is_said_of_two_schemas_is_what_a_reader_does(writer: Any, reader: Any) -> None:
    assume(not fits_twice(reader, writer))
    read = parse_avro(json.dumps(reader), (), False)
    wrote = parse_avro(json.dumps(writer), (), False)
    problems = unreadable(read.model, wrote.model)
    values = list(itertools.islice(covering(writer, {}), 50))
    # As fastavro writes a union: by the name of a branch.
    results = [is_read(value, writer, reader) for value in values]
    assert all(results) == (not problems), (problems, values, results)


@given(records().map(one_name_once))
def test_a_schema_reads_itself_and_is_written_the_same_again(schema: Any) -> None:
    parsed = parse_avro(json.dumps(schema), (), False)
    assert unreadable(parsed.model, parsed.model) == []
    again = parse_avro(parsed.text, (), False)
    assert again.text == parsed.text
    assert parse_avro(json.dumps(schema, indent=3, sort_keys=True), (), False).text == parsed.text
