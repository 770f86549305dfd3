"""Cuts SQL text into statements at its semicolons. Pure."""


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
        elif text.startswith("--", at):
            newline = text.find("\n", at)
            at = len(text) if newline < 0 else newline
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif mark == ";":
            if has_content:
                statements.append(text[start:at].strip())
            at += 1
            start, has_content = at, False
        else:
            has_content |= not mark.isspace()
            at += 1
    return statements, text[start:] if has_content or text[start:].strip() else ""


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
