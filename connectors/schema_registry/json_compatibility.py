"""Whether values of one JSON Schema are values of another: the rules of Confluent's registry.

They ask of each keyword whether the new schema takes all that the old one took, and of objects
whether they are open. A property may be added where the old schema was closed (nobody wrote it) or
had said what other properties are, and removed where the new one is open. An open object that gets
a property is incompatible: somebody may have written it with another type.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.json_keywords import (
    Difference,
    enums,
    frozen,
    numbers,
    strings,
)
from lakehead.connectors.schema_registry.json_objects import arrays, objects
from lakehead.connectors.schema_registry.json_schema import Part, Source, parts_of
from lakehead.connectors.schema_registry.parsed import difference

_STEPS_MAX = 200_000


def unreadable(reader: Source, writer: Source) -> list[str]:
    """Return why a value of `writer` may be none of `reader`: nothing if each is one."""
    found = _Comparison().schemas(writer, reader, "#")
    return [
        difference(each.kind, f"The new schema is narrower at path '{each.path}'", each.path)
        for each in dict.fromkeys(found)
    ]


@dataclass(slots=True)
class _Comparison:
    """One pass over two schemas. Schemas inside themselves are compared once on each way."""

    above: set[tuple[int, int, str]] = field(default_factory=set)
    steps: int = 0

    def schemas(
        self, old_given: Source | Part | None, new_given: Source | Part | None, path: str
    ) -> list[Difference]:
        """What the new schema does not take of the old one's values; None: there is no schema."""
        if new_given is None:
            return []
        if old_given is None:
            return [Difference("SCHEMA_ADDED", path)]
        self.steps += 1
        if self.steps > _STEPS_MAX:
            raise InvalidSchema(f"the schemas take more than {_STEPS_MAX} steps to compare")
        old, new = parts_of(old_given), parts_of(new_given)
        if (old.kind == "combined") != (new.kind == "combined") and self._is_branch(old, new, path):
            return []
        if old.kind != new.kind:
            return (
                []
                if old.kind == "never" or new.kind == "any"
                else [Difference("TYPE_CHANGED", path)]
            )
        pair = (id(old.source.raw), id(new.source.raw), old.kind + old.criterion)
        if pair in self.above:
            return []
        self.above.add(pair)
        try:
            return self._same_kind(old, new, path)
        finally:
            self.above.discard(pair)

    def _is_branch(self, old: Part, new: Part, path: str) -> bool:
        """Whether one of the two is, to the other, no more than one of its own parts."""
        if new.kind == "combined":
            if len(new.parts) == 1 or new.criterion in ("anyOf", "oneOf"):
                return any(not self.schemas(old, each, path) for each in new.parts)
            return False
        if len(old.parts) == 1 or old.criterion == "allOf":
            return any(not self.schemas(each, new, path) for each in old.parts)
        return False

    def _same_kind(self, old: Part, new: Part, path: str) -> list[Difference]:
        match old.kind:
            case "string":
                return strings(old.raw, new.raw, path)
            case "number":
                return numbers(old, new, path)
            case "enum":
                return enums(old.raw["enum"], new.raw["enum"], path)
            case "const":
                changed = frozen(old.raw["const"]) != frozen(new.raw["const"])
                return [Difference("ENUM_ARRAY_CHANGED", f"{path}/const")] if changed else []
            case "not":
                # What is negated may take less, never more.
                refused = self.schemas(new.parts[0], old.parts[0], f"{path}/not")
                return [Difference("NOT_TYPE_EXTENDED", f"{path}/not")] if refused else []
            case "combined":
                return self._combined(old, new, path)
            case "object":
                return objects(self.schemas, old, new, path)
            case "array":
                return arrays(self.schemas, old, new, path)
            case _:
                return []

    def _combined(self, old: Part, new: Part, path: str) -> list[Difference]:
        before, after = _distinct(old.parts), _distinct(new.parts)
        if not _is_criterion_kept(old, new):
            return [Difference("COMBINED_TYPE_CHANGED", path)]
        found = []
        if len(before) < len(after) and new.criterion == "allOf":
            found.append(Difference("PRODUCT_TYPE_EXTENDED", path))
        if len(before) > len(after) and old.criterion != "allOf":
            found.append(Difference("SUM_TYPE_NARROWED", path))
        edges = [
            [
                there
                for there, each in enumerate(after)
                if not self.schemas(part, each, f"{path}/{old.criterion}/{here}")
            ]
            for here, part in enumerate(before)
        ]
        if _matched(edges, len(after)) < min(len(before), len(after)):
            found.append(Difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path))
        return found


def _is_criterion_kept(old: Part, new: Part) -> bool:
    if new.criterion in {old.criterion, "anyOf"}:
        return True
    was_one, is_one = len(old.parts) == 1, len(new.parts) == 1
    return (
        (was_one and is_one)
        or (was_one and new.criterion == "oneOf")
        or (is_one and old.criterion == "allOf")
    )


def _distinct(parts: Sequence[Part | Source]) -> list[Part | Source]:
    """Parts without those that are written twice."""
    found: dict[str, Part | Source] = {}
    for each in parts:
        kind = each.kind + str(each.is_integer) + each.criterion if isinstance(each, Part) else ""
        raw = each.source.raw if isinstance(each, Part) else each.raw
        found.setdefault(kind + frozen(raw), each)
    return list(found.values())


def _matched(edges: Sequence[Sequence[int]], count: int) -> int:
    """How many of one side can be given one each of the other (Kuhn's augmenting paths)."""
    given: list[int | None] = [None] * count

    def place(here: int, tried: set[int]) -> bool:
        for there in edges[here]:
            if there not in tried:
                tried.add(there)
                holder = given[there]
                if holder is None or place(holder, tried):
                    given[there] = here
                    return True
        return False

    return sum(place(here, set()) for here in range(len(edges)))
