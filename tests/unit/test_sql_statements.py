import pytest

from lake.sql_statements import split_statements


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
