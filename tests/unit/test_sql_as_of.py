"""Temporal clauses in the text of a statement."""

import json

import pytest

from lakehead.lake.sql.as_of import ending_offsets, find_as_of
from lakehead.storage.errors import SettingsError


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT * FROM t", []),
        ("SELECT 't TIMESTAMP AS OF 1' FROM t -- t VERSION AS OF 1", []),
        ("FROM t VERSION AS OF 'group:g'", [("t", "VERSION", "'group:g'", False)]),
        ("FROM t FOR SYSTEM_VERSION AS OF 23 WHERE x", [("t", "VERSION", "23", False)]),
        (
            "FROM `my-t` timestamp as of '2026-11-27' o",
            [("my-t", "TIMESTAMP", "'2026-11-27'", True)],
        ),
        ("FROM a.`b.c` VERSION AS OF 3)", [("a.b.c", "VERSION", "3", False)]),
        (
            "FROM t /* x */ FOR SYSTEM_TIME -- y\nAS OF current_timestamp() - INTERVAL 1 HOUR AS o",
            [("t", "TIMESTAMP", "current_timestamp() - INTERVAL 1 HOUR", True)],
        ),
        (
            "FROM t TIMESTAMP AS OF now() - INTERVAL '1:30' HOUR TO MINUTE LIMIT 3",
            [("t", "TIMESTAMP", "now() - INTERVAL '1:30' HOUR TO MINUTE", False)],
        ),
        (
            "FROM t TIMESTAMP AS OF now() - INTERVAL 1 DAY 2 HOURS",
            [("t", "TIMESTAMP", "now() - INTERVAL 1 DAY 2 HOURS", False)],
        ),
        (
            "FROM t TIMESTAMP AS OF TIMESTAMP '2026-11-27' JOIN u VERSION AS OF \"group:g\" x",
            [
                ("t", "TIMESTAMP", "TIMESTAMP '2026-11-27'", False),
                ("u", "VERSION", '"group:g"', True),
            ],
        ),
        (
            "FROM t TIMESTAMP AS OF cast(')' || '2026' AS timestamp), u",
            [("t", "TIMESTAMP", "cast(')' || '2026' AS timestamp)", False)],
        ),
        (
            "FROM t TIMESTAMP AS OF (SELECT max(a) FROM b) c",
            [("t", "TIMESTAMP", "(SELECT max(a) FROM b)", True)],
        ),
        ("FROM t TIMESTAMP AS OF", []),
        ("FROM t TIMESTAMP AS OF (now()", []),
    ],
)
def test_temporal_clauses_are_found_with_their_expressions(
    statement: str, found: list[tuple[str, str, str, bool]]
) -> None:
    clauses = find_as_of(statement)
    assert [(one.name, one.kind, one.expression, one.has_alias) for one in clauses] == found
    for one in clauses:
        assert statement[one.start : one.end].endswith(one.expression)
        assert one.name.split(".", maxsplit=1)[0] in statement[one.start : one.end]


@pytest.mark.parametrize(
    ("partitions", "version", "option"),
    [
        (3, "group:g", "group:g"),
        (1, "23", {"t": {"0": 23}}),
        (2, '{"0":23,"1":-1}', {"t": {"0": 23, "1": -1}}),
    ],
)
def test_a_version_of_a_topic_is_a_group_or_offsets(
    partitions: int, version: str, option: object
) -> None:
    found = ending_offsets("t", partitions, version)
    assert (found if isinstance(option, str) else json.loads(found)) == option


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("23", "has 2 partitions: name an offset for each"),
        ("group:", "a version of topic t is 'group:NAME'"),
        ("latest", "a version of topic t is 'group:NAME'"),
        ("{broken", "a version of topic t is 'group:NAME'"),
        ("[1]", "a version of topic t is 'group:NAME'"),
    ],
)
def test_other_versions_are_an_error_that_says_what_there_is(version: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ending_offsets("t", 2, version)
