"""Avro schemas by a seed: a chain of three that grew from one another, most of them damaged."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "n.A", "n.m.B", ".C", "record", "string", "n.string", "x-y", "9a", "", "é")
SPACES = ("n", "n.m", "", "com.my-company", "n..m", None, 5)
DEFAULTS: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1 << 31, -(1 << 31), 1 << 40, 1 << 63, "", "a", "NaN?", "1.5", "3f"),
    *([], [1], ["a"], {}, {"a": 1}, {"f0": 1}, {"f0": None}),
)
LOGICAL: tuple[dict[str, Any], ...] = (
    {"logicalType": "decimal", "precision": 4, "scale": 2},
    {"logicalType": "decimal", "precision": 2, "scale": 5},
    {"logicalType": "decimal", "precision": "x"},
    {"logicalType": "decimal"},
    {"logicalType": "timestamp-millis"},
    {"logicalType": "date"},
    {"logicalType": "uuid"},
    {"logicalType": 7},
    {"logicalType": "made-up", "z": 1, "b": 2},
)


def avro_chain(rng: random.Random) -> list[str]:
    """Return three texts."""
    first = _record(rng, 3, rng.choice(("R", "n.R"))) if rng.random() < 0.8 else _type(rng, 2)
    chain = [first]
    for _ in range(2):
        chain.append(_changed(rng, copy.deepcopy(chain[-1])))
    return [_text(rng, _damaged(rng, each) if rng.random() < 0.4 else each) for each in chain]


def avro_reference(rng: random.Random) -> str:
    """Return the text of a record `ref.Other`, which another schema may name."""
    fields = [{"name": f"f{at}", "type": rng.choice(PRIMITIVES)} for at in range(rng.randrange(4))]
    return json.dumps({"type": "record", "name": "Other", "namespace": "ref", "fields": fields})


def _text(rng: random.Random, node: Any) -> str:
    text = json.dumps(node, indent=rng.choice((None, None, 1)))
    match rng.randrange(40):
        case 0:
            return text[: len(text) // 2]
        case 1:
            return text + rng.choice((" ", "x", "{}"))
        case 2:
            return f"/* a comment */ {text}" + rng.choice(("", "\n", " // behind"))
        case 3:
            return text.replace('"', "'")
    return text


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES[:5] if rng.random() < 0.9 else NAMES)


def _type(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(
        ("primitive",) * 4
        + (("array", "map", "union", "record") if depth else ())
        + ("enum", "fixed", "name", "logical")
    )
    match kind:
        case "primitive":
            return rng.choice(PRIMITIVES)
        case "logical":
            return {"type": rng.choice(PRIMITIVES), **rng.choice(LOGICAL)}
        case "array":
            return {"type": "array", "items": _type(rng, depth - 1)}
        case "map":
            return {"type": "map", "values": _type(rng, depth - 1)}
        case "union":
            branches = [_type(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
            return ["null", *branches] if rng.random() < 0.5 else branches
        case "record":
            return _record(rng, depth - 1, _name(rng))
        case "enum":
            return _enum(rng)
        case "fixed":
            node = {"type": "fixed", "name": _name(rng), "size": rng.choice((0, 2, 3, 16))}
            return node | (rng.choice(LOGICAL) if rng.random() < 0.3 else {})
    return rng.choice(("A", "B", "n.A", "R", "n.R", "ref.Other"))


def _enum(rng: random.Random) -> dict[str, Any]:
    symbols = rng.sample(("X", "Y", "Z", "W"), rng.randrange(0, 4))
    node: dict[str, Any] = {"type": "enum", "name": _name(rng), "symbols": symbols}
    if rng.random() < 0.4:
        node["default"] = rng.choice((*symbols, "X"))
    return node


def _record(rng: random.Random, depth: int, name: str) -> dict[str, Any]:
    fields = [_field(rng, depth, f"f{index}") for index in range(rng.randrange(0, 4))]
    node: dict[str, Any] = {"type": rng.choice(("record",) * 9 + ("error",)), "name": name}
    if rng.random() < 0.2:
        node["namespace"] = rng.choice(SPACES[:3])
    if rng.random() < 0.2:
        node["doc"] = rng.choice(("about", "", 5, None))
    if rng.random() < 0.2:
        node["aliases"] = rng.choice((["A"], ["n.R", "R"], [".R"], ["m.B", "B"]))
    return {**node, "fields": fields, **(rng.choice(LOGICAL) if rng.random() < 0.1 else {})}


def _field(rng: random.Random, depth: int, name: str) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": _type(rng, max(depth - 1, 0))}
    if rng.random() < 0.4:
        field["default"] = _default(rng, field["type"])
    if rng.random() < 0.1:
        field["aliases"] = rng.choice((["f0"], ["f1", "f2"], ["f1", "f1"], ["g"]))
    if rng.random() < 0.1:
        field["order"] = rng.choice(("ascending", "descending", "ignore", "Ignore"))
    return field


def _default(rng: random.Random, node: Any) -> Any:
    """A default that mostly is a value of the type."""
    if rng.random() < 0.1:
        return rng.choice(DEFAULTS)
    if isinstance(node, list):
        return _default(rng, rng.choice(node)) if node else None
    kind = node["type"] if isinstance(node, dict) else node
    known: dict[str, tuple[Any, ...]] = {
        "null": (None,), "boolean": (True,), "int": (0, -1), "long": (1 << 40,), "float": (1.5, 2),
        "double": (2.5, "1.5"), "array": ([],), "map": ({},), "record": ({}, {"f0": 1}),
    }  # fmt: skip
    return rng.choice(known.get(kind, ("X", "a")))


def _nodes(node: Any) -> list[Any]:
    """All objects of a schema that are types or fields."""
    found: list[Any] = []
    if isinstance(node, list):
        return [inner for each in node for inner in _nodes(each)]
    if isinstance(node, dict):
        found.append(node)
        for key in ("type", "items", "values", "fields"):
            found += _nodes(node.get(key))
    return found


def _changed(rng: random.Random, node: Any) -> Any:
    """The schema after a change that users make."""
    nodes = [each for each in _nodes(node) if "name" in each]
    records = [each for each in nodes if isinstance(each.get("fields"), list)]
    fields = [field for each in records for field in each["fields"]]
    match rng.randrange(8):
        case 0 | 1 if records:
            record = rng.choice(records)
            record["fields"].append(_field(rng, 1, f"g{rng.randrange(9)}"))
        case 2 if fields:
            rng.choice(fields)["type"] = rng.choice(("long", "double", ["null", "string"], "bytes"))
        case 3 if fields:
            field = rng.choice(fields)
            field["aliases"], field["name"] = [field["name"]], f"h{rng.randrange(9)}"
        case 4 if records:
            record = rng.choice(records)
            record["fields"] = record["fields"][1:]
        case 5 if nodes:
            for each in nodes:
                if isinstance(each.get("symbols"), list):
                    each["symbols"] = [*each["symbols"], f"N{rng.randrange(3)}"]
        case 6 if records:
            record = rng.choice(records)
            record["aliases"], record["name"] = [record["name"]], "Renamed"
        case 7:
            return [node] if rng.random() < 0.3 else node
    return node


def _damaged(rng: random.Random, given: Any) -> Any:
    node = copy.deepcopy(given)
    nodes = _nodes(node)
    if not nodes:
        return rng.choice(([node, node], [[node]], {"type": node}, {"type": {"type": node}}, 5))
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda one: one.update(name=rng.choice(NAMES)),
        lambda one: one.update(name=rng.choice((None, 5, [], "a.b.", "..a"))),
        lambda one: one.update(namespace=rng.choice(SPACES)),
        lambda one: one.update(default=rng.choice(DEFAULTS)),
        lambda one: one.update(default=rng.choice(DEFAULTS)),
        lambda one: one.update(order=rng.choice(("sideways", None, 1, "DESCENDING", ""))),
        lambda one: one.update(aliases=rng.choice(("A", None, [1], ["x-y"], ["9.a"], [], [""]))),
        lambda one: one.update(size=rng.choice((-1, 1.0, 2.5, "4", None, 1 << 31, (1 << 31) - 1))),
        lambda one: one.update(symbols=rng.choice((["A", "A"], ["x-y"], [""], [1], "A", None))),
        lambda one: one.update(type=rng.choice(("Nowhere", None, 5, "", [], {}, ["int", "int"]))),
        lambda one: one.update(type=[["int"], "null"]),
        lambda one: one.update(type={"type": rng.choice((["null"], "int", {"type": "int"}))}),
        lambda one: one.update(rng.choice(LOGICAL)),
        lambda one: one.update(doc=rng.choice((None, 5, []))),
        lambda one: one.pop(rng.choice(list(one)), None),
        lambda one: one.update(fields=rng.choice((None, {}, [5], [{}], [{"name": "a"}]))),
        lambda one: one.update(
            fields=[{"name": "a", "type": "int"}, {"name": rng.choice("ab"), "type": "string"}]
        ),
        lambda one: one.update(items=rng.choice((None, "int", "Nowhere"))),
        lambda one: one.update(extra=rng.choice((None, {"b": 1, "a": 2}, "text"))),
    )
    for _ in range(rng.randrange(1, 3)):
        rng.choice(changes)(rng.choice(nodes))
    return node
