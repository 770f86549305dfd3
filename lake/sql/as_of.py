"""Time travel over topics, in the words of Spark SQL: `orders TIMESTAMP AS OF '2026-11-27 12:00'`
and `orders VERSION AS OF 'group:reports'`.

Spark plans these for tables of catalogs and refuses them for views, so the clause is found in the
text of a statement and a view that ends there takes the place of topic and clause.

Source: `temporalClause` and `relationPrimary` of Spark's grammar (SqlBaseParser.g4).
"""

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lakehead.lake.positions import GroupPosition
from lakehead.lake.sql.statements import Token, tokens
from lakehead.storage.errors import SettingsError


class AsOf(NamedTuple):
    """A relation with a temporal clause, at [start, end) of a statement: its name, the clause and
    the text of the expression after `AS OF`. `has_alias` if the statement gives the relation
    another name.
    """

    start: int
    end: int
    name: str
    kind: Literal["TIMESTAMP", "VERSION"]
    expression: str
    has_alias: bool


_KINDS: dict[str, Literal["TIMESTAMP", "VERSION"]] = {
    "TIMESTAMP": "TIMESTAMP",
    "SYSTEM_TIME": "TIMESTAMP",
    "VERSION": "VERSION",
    "SYSTEM_VERSION": "VERSION",
}
_AFTER_RELATION = re.compile(
    r"ANTI|CLUSTER|CROSS|DISTRIBUTE|EXCEPT|FULL|GROUP|HAVING|INNER|INTERSECT|JOIN|LATERAL|LEFT|"
    r"LIMIT|MINUS|NATURAL|OFFSET|ON|ORDER|PIVOT|RIGHT|SEMI|SORT|TABLESAMPLE|UNION|UNPIVOT|USING|"
    r"WHERE|WINDOW|WITH",
    re.IGNORECASE,
)
"""Words that may follow a relation in Spark's grammar, none of them its alias."""
_TYPED = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DATE"})


def find_as_of(statement: str) -> list[AsOf]:
    """Return the temporal clauses of a statement, outside of quotes and comments, in their order.

    The expression of one is an operand (a literal, a name, a call or what parentheses hold), and
    operands or intervals that are added and subtracted: Spark's own has more, in parentheses.
    """
    found: list[AsOf] = []
    every = tokens(statement)
    for at, token in enumerate(every):
        clause = _clause(every, at)
        if clause is None or not token.is_name or token.text.upper() == "FOR":
            continue
        kind, first = clause
        end = _expression_end(every, first)
        name, start = token.name, token.start
        if at >= 2 and every[at - 1].text == "." and every[at - 2].is_name:
            name, start = f"{every[at - 2].name}.{name}", every[at - 2].start
        if end > first:
            found.append(
                AsOf(
                    start=start,
                    end=every[end - 1].end,
                    name=name,
                    kind=kind,
                    expression=statement[every[first].start : every[end - 1].end],
                    has_alias=_has_alias(every, end),
                )
            )
    return found


def ending_offsets(topic: str, partitions: int, version: str) -> str:
    """Return the option `endingOffsets` of a version: a group's name (`group:NAME`), an offset for
    each partition as JSON (`{"0":23,"1":-1}`), or an offset of the one partition.

    Raises SettingsError for any other.
    """
    if GroupPosition.parse(version) is not None:
        return version
    offsets: object = None
    if re.fullmatch(r"\d+", version):
        if partitions != 1:
            raise SettingsError(
                f"VERSION AS OF {version}: topic {topic} has {partitions} partitions: name an "
                'offset for each, as in VERSION AS OF \'{"0":23,"1":-1}\' (-1: its end)'
            )
        offsets = {"0": int(version)}
    elif version.startswith("{"):
        try:
            offsets = json.loads(version)
        except ValueError:
            offsets = None
    if not isinstance(offsets, dict):
        raise SettingsError(
            f"VERSION AS OF {version!r}: a version of topic {topic} is 'group:NAME', an offset for "
            'each partition (\'{"0":23,"1":-1}\') or, of one partition, an offset'
        )
    return json.dumps({topic: offsets})


def _clause(every: Sequence[Token], at: int) -> tuple[Literal["TIMESTAMP", "VERSION"], int] | None:
    """Return the kind of the temporal clause after a token, and where its expression begins."""
    words = [token.text.upper() for token in every[at + 1 : at + 5]]
    skipped = 1 if words[:1] == ["FOR"] else 0
    kind = _KINDS.get(words[skipped]) if len(words) > skipped else None
    if kind is None or words[skipped + 1 : skipped + 3] != ["AS", "OF"]:
        return None
    return kind, at + skipped + 4


def _expression_end(every: Sequence[Token], at: int) -> int:
    """Return the token after the expression that begins at one; `at` if none does."""
    end = _operand_end(every, at)
    while end > at and end < len(every) and every[end].text in ("+", "-"):
        after = _operand_end(every, end + 1)
        if after == end + 1:
            break
        end = after
    return end


def _operand_end(every: Sequence[Token], at: int) -> int:
    if at >= len(every):
        return at
    token, word = every[at], every[at].text.upper()
    if word == "INTERVAL":
        end = at + 1
        while end + 1 < len(every) and every[end].is_value and every[end + 1].is_name:
            end += 2
            if end + 1 < len(every) and every[end].text.upper() == "TO":
                end += 2
        return end if end > at + 1 else (at + 2 if at + 1 < len(every) else at)
    if word in _TYPED and at + 1 < len(every) and every[at + 1].is_value:
        return at + 2
    if token.text == "(":
        return _closed(every, at)
    if token.is_value:
        return at + 1
    if not token.is_name:
        return at
    end = at + 1
    while end + 1 < len(every) and every[end].text == "." and every[end + 1].is_name:
        end += 2
    return _closed(every, end) if end < len(every) and every[end].text == "(" else end


def _closed(every: Sequence[Token], at: int) -> int:
    """Return the token after the parenthesis that closes the one at a token."""
    depth = 0
    for place in range(at, len(every)):
        depth += {"(": 1, ")": -1}.get(every[place].text, 0)
        if not depth:
            return place + 1
    return at


def _has_alias(every: Sequence[Token], end: int) -> bool:
    if end >= len(every):
        return False
    token = every[end]
    return token.is_name and _AFTER_RELATION.fullmatch(token.text) is None
