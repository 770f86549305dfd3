import pytest

from lakehead.lake.sql.statements import backquoted, split_statements


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        (" ; ;\n", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2 ;x", ["SELECT 1", "SELECT 2"], "x"),
        ('SELECT \';\', "a;\\";b", `c;`;', ['SELECT \';\', "a;\\";b", `c;`'], ""),
        ("SELECT 1 -- a; b\n;", ["SELECT 1 -- a; b"], ""),
        ("SELECT /* a; b */ 1;", ["SELECT /* a; b */ 1"], ""),
        ("-- only; this\n;", [], ""),
        ("SELECT 'open;", [], "SELECT 'open;"),
        ("/* open;", [], "/* open;"),
        ("SELECT `a\\`;", ["SELECT `a\\`"], ""),
    ],
)
def test_statements_end_at_semicolons_outside_quotes_and_comments(
    text: str, statements: list[str], rest: str
) -> None:
    assert split_statements(text) == (statements, rest)


def test_names_in_backquotes_are_found_outside_of_texts_and_comments() -> None:
    text = "SELECT '`no`', `a b` /* `no` */ FROM delta.`s3://b/t?region=x` -- `no`\n, `open"
    found = backquoted(text)
    assert [name.name for name in found] == ["a b", "s3://b/t?region=x"]
    assert [text[one.start : one.end] for one in found] == ["`a b`", "`s3://b/t?region=x`"]
