"""Reads SQL text as far as needed: statements between semicolons, calls by name. Pure."""

import re
from typing import NamedTuple


class Call(NamedTuple):
    """A call at [start, end) of a text, with what is between its parentheses."""

    start: int
    end: int
    arguments: str


class Name(NamedTuple):
    """A name in backquotes at [start, end) of a text."""

    start: int
    end: int
    name: str


class Token(NamedTuple):
    """A word, a number, a quoted text or one other character at [start, end) of a text."""

    start: int
    end: int
    text: str

    @property
    def is_name(self) -> bool:
        """True of a word, and of a name in backquotes."""
        return self.text[0] in "`_" or self.text[0].isalpha()

    @property
    def is_value(self) -> bool:
        """True of a string and of a number."""
        return self.text[0] in "'\"" or self.text[0].isdigit()

    @property
    def name(self) -> str:
        """The name, without its backquotes."""
        return self.text[1:-1].replace("``", "`") if self.text[0] == "`" else self.text


_WORD = re.compile(r"\w+")


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text, without space and comments. A name with a doubled backquote in
    it comes whole.
    """
    found: list[Token] = []
    at = 0
    while at < len(text):
        word = _WORD.match(text, at)
        end = _after_token(text, at) if word is None else word.end()
        while text[at] == "`" and text.startswith("`", end):
            end = _after_quoted(text, end)
        if not text[at].isspace() and not text.startswith(("--", "/*"), at):
            found.append(Token(at, end, text[at:end]))
        at = end
    return found


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements that end with a semicolon, and the text after the last one.

    Semicolons in quotes, backquotes and comments do not end a statement. Statements that hold
    nothing but space and comments are left out.
    """
    statements: list[str] = []
    start = at = 0
    has_content = False
    while at < len(text):
        mark = text[at]
        if mark in "'\"`":
            at = _after_quoted(text, at)
            has_content = True
        elif text.startswith(("--", "/*"), at):
            at = _after_token(text, at)
        elif mark == ";":
            if has_content:
                statements.append(text[start:at].strip())
            at += 1
            start, has_content = at, False
        else:
            has_content |= not mark.isspace()
            at += 1
    return statements, text[start:] if has_content or text[start:].strip() else ""


def find_calls(text: str, name: str) -> list[Call]:
    """Return the calls of a function whose name the pattern `name` matches, in any case, outside of
    quotes and comments. A call without its end is not one.
    """
    begins = re.compile(rf"\b{name}\s*\(", re.IGNORECASE)
    found: list[Call] = []
    at = 0
    while at < len(text):
        begin = begins.match(text, at)
        if begin is None:
            at = _after_token(text, at)
            continue
        depth, inner = 1, begin.end()
        while depth and inner < len(text):
            depth += {"(": 1, ")": -1}.get(text[inner], 0)
            inner = _after_token(text, inner)
        if depth:
            break
        found.append(Call(at, inner, text[begin.end() : inner - 1]))
        at = inner
    return found


def backquoted(text: str) -> list[Name]:
    """Return the names in backquotes, outside of quotes and comments; one that has a backquote in
    it comes in parts.
    """
    found: list[Name] = []
    at = 0
    while at < len(text):
        end = _after_token(text, at)
        if text[at] == "`" and end - at > 1 and text[end - 1] == "`":
            found.append(Name(at, end, text[at + 1 : end - 1]))
        at = end
    return found


def _after_token(text: str, at: int) -> int:
    """Position after the quoted text, the comment or the character that begins at `at`."""
    if text[at] in "'\"`":
        return _after_quoted(text, at)
    if text.startswith("--", at):
        newline = text.find("\n", at)
        return len(text) if newline < 0 else newline
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    return at + 1


def _after_quoted(text: str, start: int) -> int:
    """Position after the quoted text that begins at `start`, or the end if it never ends."""
    quote = text[start]
    at = start + 1
    while at < len(text):
        if text[at] == "\\" and quote != "`":
            at += 2
        elif text[at] == quote:
            return at + 1
        else:
            at += 1
    return len(text)
