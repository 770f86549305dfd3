from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import TIMESTAMP, parse_schema, to_ddl
from lakehead.storage.errors import SettingsError


def test_every_type_is_read_and_written_back() -> None:
    text = (
        "a STRING, b BOOLEAN, c TINYINT, d SMALLINT, e INT, f BIGINT, g FLOAT, h DOUBLE, i DATE, "
        "j TIMESTAMP, k DECIMAL(12, 2), l ARRAY<INT>, m STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>, "
        "`odd-name` STRING"
    )
    schema = parse_schema(text)
    assert schema.field("j").type == TIMESTAMP
    assert schema.field("k").type == pa.decimal128(12, 2)
    assert schema.field("m").type.field("y").type.value_type.field("z").type == pa.date32()
    assert to_ddl(schema) == text
    assert parse_schema(to_ddl(schema)) == schema


def test_names_of_types_are_not_case_sensitive_and_have_synonyms() -> None:
    assert parse_schema("a long, b integer, c array<short>") == pa.schema(
        [("a", pa.int64()), ("b", pa.int32()), ("c", pa.list_(pa.int16()))]
    )


def test_a_schema_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "flights.ddl").write_text("a INT,\n  b STRING\n")
    assert parse_schema(f"@{tmp_path}/flights.ddl").names == ["a", "b"]
    with pytest.raises(SettingsError, match="cannot read the schema file"):
        parse_schema(f"@{tmp_path}/missing.ddl")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a INT,",
        "a INT b INT",
        "a WIBBLE",
        "a ARRAY<INT",
        "a STRUCT<b>",
        "a DECIMAL(40)",
        "a DECIMAL(5, 6)",
        "a INT; DROP TABLE x",
        "a INT, A STRING",
        "`a b` INT",
        "a " + "ARRAY<" * 5000 + "INT" + ">" * 5000,
        "a " + "STRUCT<b: " * 5000 + "INT" + ">" * 5000,
    ],
)
def test_what_is_not_understood_is_one_clear_line(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_schema(text)
    assert "\n" not in str(caught.value)
