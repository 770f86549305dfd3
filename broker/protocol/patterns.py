r"""Regular expressions of clients, in time linear in what they are matched with, as Kafka has them
by RE2: one that would keep a backtracking matcher busy for ever must not stop a node.

Understood are characters, `.`, classes, the escapes `\d \D \w \W \s \S` (ASCII) and those of
punctuation, groups, `|`, and the quantifiers `* + ? {n} {n,} {n,m}`, lazy or not; `^` at the
beginning and `$` at the end, where they mean nothing, since the whole text has to match.
"""

import re
from typing import NamedTuple, TypeAlias

STATES_MAX = 2_000
"""Largest automaton; RE2 has a bound too, in bytes."""
REPEATS_MAX = 1_000
"""Most repetitions that a quantifier may name: RE2's bound."""
_DEPTH_MAX = 50
_CACHE_MAX = 10_000
_CLASS_ESCAPES = "dDwWsS"
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{1,4})(?:(,)(\d{1,4})?)?\})\??")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\\[])*\]")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>|(?!\?))")


class InvalidPattern(ValueError):
    """Not a regular expression, or not one that is understood here."""


class _Test(NamedTuple):
    """One character."""

    test: "re.Pattern[str]"


class _Sequence(NamedTuple):
    parts: "list[_Node]"


class _Choice(NamedTuple):
    branches: "list[_Node]"


class _Repeat(NamedTuple):
    node: "_Node"
    least: int
    most: int | None


_Node: TypeAlias = _Test | _Sequence | _Choice | _Repeat
_Set: TypeAlias = frozenset[int]


class Pattern:
    """A regular expression. Raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        self._tests: list[re.Pattern[str] | None] = []
        self._next: list[list[int]] = []
        node = _Parser(text).parse()
        start, self._end = self._build(node)
        self._start = self._closure({start})
        self._known: dict[tuple[_Set, str], _Set] = {}

    def matches(self, text: str) -> bool:
        """Return true if the whole text matches."""
        at = self._start
        for character in text:
            at = self._step(at, character)
            if not at:
                return False
        return self._end in at

    def _step(self, at: _Set, character: str) -> _Set:
        found = self._known.get((at, character))
        if found is None:
            reached: set[int] = set()
            for state in at:
                test = self._tests[state]
                if test is not None and test.fullmatch(character):
                    reached.update(self._next[state])
            found = self._closure(reached)
            if len(self._known) < _CACHE_MAX:
                self._known[at, character] = found
        return found

    def _closure(self, states: set[int]) -> _Set:
        """Return these states and all that are reached without a character."""
        found, waiting = set(states), list(states)
        while waiting:
            state = waiting.pop()
            if self._tests[state] is None:
                fresh = [one for one in self._next[state] if one not in found]
                found.update(fresh)
                waiting += fresh
        return frozenset(found)

    def _state(self, test: "re.Pattern[str] | None" = None) -> int:
        if len(self._tests) == STATES_MAX:
            raise InvalidPattern("pattern too large")
        self._tests.append(test)
        self._next.append([])
        return len(self._tests) - 1

    def _build(self, node: _Node) -> tuple[int, int]:
        """Add the states of a node; return where it begins and where it ends."""
        if isinstance(node, _Test):
            start, end = self._state(node.test), self._state()
            self._next[start].append(end)
            return start, end
        if isinstance(node, _Sequence):
            start = end = self._state()
            for part in node.parts:
                first, last = self._build(part)
                self._next[end].append(first)
                end = last
            return start, end
        if isinstance(node, _Choice):
            start, end = self._state(), self._state()
            for branch in node.branches:
                first, last = self._build(branch)
                self._next[start].append(first)
                self._next[last].append(end)
            return start, end
        return self._build_repeat(node)

    def _build_repeat(self, node: _Repeat) -> tuple[int, int]:
        start = at = self._state()
        for _ in range(node.least):
            first, last = self._build(node.node)
            self._next[at].append(first)
            at = last
        end = self._state()
        if node.most is None:
            first, last = self._build(node.node)
            self._next[at] += (first, end)
            self._next[last] += (first, end)
            return start, end
        for _ in range(node.most - node.least):
            first, last = self._build(node.node)
            self._next[at] += (first, end)
            at = last
        self._next[at].append(end)
        return start, end


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._position < len(self._text):
            raise InvalidPattern(f"unexpected ) at {self._position}")
        return node

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidPattern("groups too deep")
        branches = [self._sequence()]
        while self._peek() == "|":
            self._position += 1
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else _Choice(branches)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        if self._depth == 1 and self._peek() == "^":
            self._position += 1
        while self._peek() not in {"", "|", ")"}:
            if self._peek() == "$" and self._depth == 1 and self._is_last():
                self._position += 1
                break
            parts.append(self._repeated(self._atom()))
        return _Sequence(parts)

    def _is_last(self) -> bool:
        return self._text[self._position + 1 : self._position + 2] in {"", "|"}

    def _repeated(self, node: _Node) -> _Node:
        found = _QUANTIFIER.match(self._text, self._position)
        if found is None:
            return node
        self._position = found.end()
        sign, least, comma, most = found.groups()
        if sign is not None:
            return _Repeat(node, int(sign == "+"), 1 if sign == "?" else None)
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if low > REPEATS_MAX or (high is not None and not low <= high <= REPEATS_MAX):
            raise InvalidPattern("invalid repetition")
        return _Repeat(node, low, high)

    def _atom(self) -> _Node:
        group = _GROUP.match(self._text, self._position)
        if group is not None:
            self._position = group.end()
            node = self._choice()
            if self._peek() != ")":
                raise InvalidPattern("missing )")
            self._position += 1
            return node
        character = self._peek()
        if character == "[":
            return self._class()
        if character in "*+?(^$":
            raise InvalidPattern(f"{character} at {self._position} is not understood")
        self._position += 1
        if character == "\\":
            return self._escape()
        source = "." if character == "." else re.escape(character)
        return _Test(re.compile(source))

    def _escape(self) -> _Node:
        character = self._peek()
        self._position += 1
        if character and character in _CLASS_ESCAPES:
            return _Test(re.compile(f"\\{character}", re.ASCII))
        if not character or character.isalnum() or not character.isascii():
            raise InvalidPattern(f"escape at {self._position - 1} is not understood")
        return _Test(re.compile(re.escape(character)))

    def _class(self) -> _Node:
        found = _CLASS.match(self._text, self._position)
        if found is None:
            raise InvalidPattern(f"class at {self._position} is not understood")
        self._position = found.end()
        try:
            return _Test(re.compile(_plain_class(found[0]), re.ASCII))
        except re.error as error:
            raise InvalidPattern(str(error)) from error


def _plain_class(source: str) -> str:
    """Return a class with what Python might take for a set operation made plain."""
    for twice in ("--", "&&", "~~", "||"):
        if twice in source:
            raise InvalidPattern(f"{twice} in a class is not understood")
    for escape in re.findall(r"\\(.)", source):
        if escape.isalnum() and escape not in _CLASS_ESCAPES:
            raise InvalidPattern(f"\\{escape} in a class is not understood")
    return source
