"""Objects and arrays of two JSON Schemas: what the new one does not take of the old one's."""

from collections.abc import Mapping, Sequence
from typing import Any

from lakehead.connectors.schema_registry.json_keywords import Compare, Difference, bounds, matches
from lakehead.connectors.schema_registry.json_schema import Part, Source, parts_of


def objects(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of objects."""
    found = _required(old.raw, new.raw, f"{path}/required")
    was, now = _schemas(old, "properties"), _schemas(new, "properties")
    for name in dict.fromkeys((*was, *now)):
        place = f"{path}/properties/{name}"
        if name not in now:
            found += _removed(compare, was[name], new, name, place)
        elif name not in was:
            found += _added(compare, old, now[name], name, place)
            if not _is_open(old) and _must_have(new.raw, name):
                found.append(Difference("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place))
        else:
            found += compare(was[name], now[name], place)
    found += _dependencies(compare, old, new, f"{path}/dependencies")
    found += _rest(
        compare,
        (old, old.raw.get("additionalProperties", True)),
        (new, new.raw.get("additionalProperties", True)),
        f"{path}/additionalProperties",
        "ADDITIONAL_PROPERTIES",
    )
    return found + bounds(
        old.raw,
        new.raw,
        path,
        {"maxProperties": "MAX_PROPERTIES"},
        {"minProperties": "MIN_PROPERTIES"},
    )


def _schemas(part: Part, keyword: str) -> dict[str, Source]:
    return {name: part.at(raw) for name, raw in part.raw.get(keyword, {}).items()}


def _required(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
    properties = new.get("properties", {})
    return [
        Difference("REQUIRED_ATTRIBUTE_ADDED", f"{path}/{name}")
        for name in old.get("properties", {})
        if name in properties and name not in _names(old) and _must_have(new, name)
    ]


def _names(raw: Mapping[str, Any]) -> Sequence[str]:
    given = raw.get("required", ())
    return given if isinstance(given, list) else ()


def _must_have(raw: Mapping[str, Any], name: str) -> bool:
    """Whether a property has to be there, and no default stands for it."""
    schema = raw.get("properties", {}).get(name)
    has_default = isinstance(schema, dict) and "default" in schema
    return name in _names(raw) and not has_default


def _is_open(part: Part) -> bool:
    """Whether any property may be there that is not named."""
    raw = part.raw
    return not raw.get("patternProperties") and raw.get("additionalProperties", True) is True


def _schema_of_others(part: Part, name: str) -> Source | None:
    """What an object that is neither open nor closed says of a property that it does not name."""
    for pattern, raw in part.raw.get("patternProperties", {}).items():
        if matches(pattern, name):
            return part.at(raw)
    rest = part.raw.get("additionalProperties", True)
    return part.at(rest) if isinstance(rest, dict) else None


def _removed(compare: Compare, was: Source, new: Part, name: str, place: str) -> list[Difference]:
    if _is_open(new):
        return []
    others = _schema_of_others(new, name)
    if others is not None:
        found = compare(was, others, place)
        kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, Difference(kind, place)] if found else []
    if parts_of(was).kind == "never":
        return []
    return [Difference("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]


def _added(compare: Compare, old: Part, now: Source, name: str, place: str) -> list[Difference]:
    if _is_open(old):
        if parts_of(now).kind == "any":
            return []
        return [Difference("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place)]
    others = _schema_of_others(old, name)
    found = [] if others is None else compare(others, now, place)
    kind = "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
    return [*found, Difference(kind, place)] if found else []


def _dependencies(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    found = []
    was, now = _names_needed(old.raw), _names_needed(new.raw)
    for name, needed in now.items():
        place = f"{path}/{name}"
        if name not in was:
            found.append(Difference("DEPENDENCY_ARRAY_ADDED", place))
        elif not set(needed) <= set(was[name]):
            wider = set(was[name]) <= set(needed)
            kind = "DEPENDENCY_ARRAY_EXTENDED" if wider else "DEPENDENCY_ARRAY_CHANGED"
            found.append(Difference(kind, place))
    before, after = _schemas_needed(old), _schemas_needed(new)
    for name, schema in after.items():
        place = f"{path}/{name}"
        if name not in before:
            found.append(Difference("DEPENDENCY_SCHEMA_ADDED", place))
        else:
            found += compare(before[name], schema, place)
    return found


def _names_needed(raw: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    given = {**raw.get("dependencies", {}), **raw.get("dependentRequired", {})}
    return {name: each for name, each in given.items() if isinstance(each, list)}


def _schemas_needed(part: Part) -> dict[str, Source]:
    given = {**part.raw.get("dependencies", {}), **part.raw.get("dependentSchemas", {})}
    return {name: part.at(each) for name, each in given.items() if not isinstance(each, list)}


def _rest(
    compare: Compare, old: tuple[Part, Any], new: tuple[Part, Any], path: str, kind: str
) -> list[Difference]:
    """What is said of properties or items that are not named: false, true, or a schema."""
    (old_part, was), (new_part, now) = old, new
    if (was is False) != (now is False):
        return [Difference(f"{kind}_REMOVED", path)] if now is False else []
    if not isinstance(now, dict):
        return []
    if not isinstance(was, dict):
        return [Difference(f"{kind}_NARROWED", path)]
    return compare(old_part.at(was), new_part.at(now), path)


def arrays(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of arrays."""
    was, now = _Items(old), _Items(new)
    found = compare(was.every, now.every, f"{path}/items")
    common = min(len(was.first), len(now.first))
    for index in range(common):
        found += compare(was.first[index], now.first[index], f"{path}/items/{index}")
    for index in range(common, len(was.first)):
        found += _item_removed(compare, was.first[index], now, f"{path}/items/{index}")
    for index in range(common, len(now.first)):
        found += _item_added(compare, was, now.first[index], f"{path}/items/{index}")
    found += _rest(
        compare, (old, was.rest), (new, now.rest), f"{path}/additionalItems", "ADDITIONAL_ITEMS"
    )
    found += bounds(old.raw, new.raw, path, {"maxItems": "MAX_ITEMS"}, {"minItems": "MIN_ITEMS"})
    if new.raw.get("uniqueItems") and not old.raw.get("uniqueItems"):
        found.append(Difference("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems"))
    return found


class _Items:
    """What a schema says of items: of the first ones one by one, of the rest, or of all alike."""

    def __init__(self, part: Part) -> None:
        raw = part.raw
        items, first = raw.get("items"), raw.get("prefixItems")
        self.every: Source | None = None
        self.rest: Any = True
        if first is not None:  # since 2020-12
            self.rest = True if items is None else items
        else:
            # Confluent's rules look at it even where no list of items gives it a meaning.
            self.rest = raw.get("additionalItems", True)
            if isinstance(items, list):
                first = items
            elif items is not None:
                self.every = part.at(items)
        self.first = [part.at(each) for each in first or ()]
        self.others = part.at(self.rest) if isinstance(self.rest, dict) else None
        self.is_open = self.rest is True


def _item_removed(compare: Compare, was: Source, now: _Items, place: str) -> list[Difference]:
    if now.is_open:
        return []
    if now.others is not None:
        found = compare(was, now.others, place)
        kind = "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, Difference(kind, place)] if found else []
    if parts_of(was).kind == "never":
        return []
    return [Difference("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]


def _item_added(compare: Compare, was: _Items, now: Source, place: str) -> list[Difference]:
    if was.is_open:
        if parts_of(now).kind == "any":
            return []
        return [Difference("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", place)]
    found = [] if was.others is None else compare(was.others, now, place)
    kind = "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
    return [*found, Difference(kind, place)] if found else []
