"""The columns and rows that a query needs of each view, read from Spark's optimized plan of it.

Spark hands neither filters nor columns to a Python source (its filter pushdown shares one plan
among all scans of a DataFrame, which gives wrong rows). But the optimizer has brought both next to
the scan: filters that a row of it must pass, and the columns that a projection or an aggregate
takes. So a query is analyzed once, its views are made again with what it needs of them, and then it
is analyzed and run. Works through the JVM of a classic session; Spark Connect has none.

Source: Spark's Catalyst (`QueryPlan`, `Expression`), by the names of its classes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from lakehead.lake.needs import ALL, Needs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCAN = "DataSourceV2ScanRelation"
_TAKES_COLUMNS = ("Project", "Aggregate")
_LIMITS = ("GlobalLimit", "LocalLimit")
_ID = re.compile(r"#(\d+)L?$")
_BETWEEN = "\x00"
_MIRRORED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "EqualTo": "EqualTo",
}


def is_query(statement: str) -> bool:
    """Return whether a statement surely only reads: to analyze another one may be to run it."""
    begins = re.match(r"\s*(select|with)\b", statement, re.IGNORECASE)
    return begins is not None and not re.search(r"\binsert\b", statement, re.IGNORECASE)


Options = tuple[tuple[str, str], ...]
"""Of a view, sorted, with names in lower case."""


def options_key(options: Mapping[str, str]) -> Options:
    """Return the form in which `query_needs` names the views of a query."""
    return tuple(sorted((name.lower(), value) for name, value in options.items()))


def query_needs(frame: "DataFrame") -> dict[Options, Needs]:
    """Return what a query needs of each view of the source `lakehead`, by the view's options
    without `needs`. Raises what optimizing the query raises.
    """
    jframe: Any = frame._jdf  # noqa: SLF001 - PySpark has no other way to a plan
    found: dict[Options, Needs] = {}
    for key, needs in _scans(jframe.queryExecution().optimizedPlan(), None, (), None):
        found[key] = found[key].either(needs) if key in found else needs
    return found


def _scans(
    node: Any, taken: tuple[int, ...] | None, filters: tuple[Any, ...], limit: int | None
) -> Iterator[tuple[Options, Needs]]:
    """Yield the scans below a node. `taken` are the ids of the columns that the nodes right above
    take, None for all; `filters` are the conditions that they apply, `limit` the number of rows.
    """
    kind = _class(node)
    if kind == _SCAN:
        given = dict(node.relation().options().asCaseSensitiveMap())
        given.pop("needs", None)
        needs = _needs_of(node, taken, filters)
        yield options_key(given), replace(needs, limit=limit)
    elif kind == "Filter":
        if taken is not None:
            taken += _references(node)
        filters += (node.condition(),)
        limit = None
    else:
        taken, filters = (_references(node) if kind in _TAKES_COLUMNS else None), ()
        if kind in _LIMITS:
            limit = _limit(node)
        elif kind != "Project":
            limit = None
    for child in _each(node.children()):
        yield from _scans(child, taken, filters, limit)
    for subquery in _each(node.subqueries()):
        yield from _scans(subquery, None, (), None)


def _limit(node: Any) -> int | None:
    """Return the number of rows that are enough; None for an expression that is not a number."""
    expression = node.limitExpr()
    value = expression.value() if _class(expression) == "Literal" else None
    return value if type(value) is int else None


def _needs_of(scan: Any, taken: tuple[int, ...] | None, filters: tuple[Any, ...]) -> Needs:
    names: dict[int, str] = {}
    for shown in scan.output().mkString(_BETWEEN).split(_BETWEEN):
        found = _ID.search(shown)
        assert found is not None, "an attribute is shown with its id"
        names[int(found[1])] = shown[: found.start()]
    needs = ALL
    # The names of the columns beside decoded values, some of which may be called `offset`.
    before = "_" if scan.relation().options().containsKey("decode") else ""
    for condition in filters:
        needs = needs.both(_bounds(condition, before))
    if taken is None:
        return needs
    return replace(needs, columns=frozenset(names[one] for one in taken if one in names))


def _references(node: Any) -> tuple[int, ...]:
    shown = node.references().toSeq().mkString(_BETWEEN)
    return tuple(int(found[1]) for one in shown.split(_BETWEEN) if (found := _ID.search(one)))


def _bounds(condition: Any, before: str) -> Needs:
    """Return bounds of all rows for which a condition can be true. `before` begins the names of
    partition, offset and timestamp.
    """
    kind = _class(condition)
    if kind in ("And", "Or"):
        left, right = _bounds(condition.left(), before), _bounds(condition.right(), before)
        return left.both(right) if kind == "And" else left.either(right)
    if kind in _MIRRORED:
        left, right = condition.left(), condition.right()
        if _class(left) == "Literal":
            kind, left, right = _MIRRORED[kind], right, left
        if _class(left) == "AttributeReference" and _class(right) == "Literal":
            return _compared(left.name(), before, kind, right.value())
    elif kind in ("In", "InSet"):
        return _listed(condition, before, kind)
    return ALL


def _listed(condition: Any, before: str, kind: str) -> Needs:
    tested, values = condition.children().apply(0), list[Any]()
    if _class(tested) != "AttributeReference":
        return ALL
    if kind == "InSet":
        shown = condition.hset().mkString(_BETWEEN).split(_BETWEEN)
        values = [int(one) for one in shown if re.fullmatch(r"-?\d+", one)]
        if len(values) != len(shown):
            return ALL
    else:
        for one in _each(condition.list()):
            if _class(one) != "Literal":
                return ALL
            values.append(one.value())
    each = [_compared(tested.name(), before, "EqualTo", value) for value in values]
    return reduce(Needs.either, each) if each else ALL


def _compared(name: str, before: str, kind: str, value: Any) -> Needs:
    """Return the bounds of a comparison of a column with a constant (null: never true)."""
    if type(value) is not int or not name.startswith(before):
        return ALL
    name = name.removeprefix(before)
    is_lower, is_upper = kind in ("GreaterThan", "GreaterThanOrEqual"), kind.startswith("Less")
    if name == "partition" and kind == "EqualTo":
        return Needs(partitions=frozenset([value]))
    if name == "offset":
        return Needs(
            first_offset=0 if is_upper else max(value + (kind == "GreaterThan"), 0),
            end_offset=ALL.end_offset
            if is_lower
            else min(value + (kind != "LessThan"), ALL.end_offset),
        )
    if name == "timestamp" and not is_upper:
        return Needs(since_ms=max(value // 1000, 0))
    return ALL


def _each(items: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for number in range(items.size()):
        yield items.apply(number)


def _class(thing: Any) -> str:
    name: str = thing.getClass().getSimpleName()
    return name
