"""A declared table of JSON whose schemas are in a registry: made, evolved by new ids, and paused or
not by what is no column.
"""

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_due import declared_tables
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_settings import Unguarded, declared_settings
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError
from tests.support.declared_topics import configure
from tests.support.schema_registry import Schemas, serve_schemas
from tests.support.topic_writer import write_topic


class Topic:
    """A topic of values in Confluent's wire format."""

    def __init__(self, cluster: Path, schemas: Schemas) -> None:
        self._cluster = cluster
        self._schemas = schemas

    def write(self, properties: Any, *values: Any) -> int:
        schema = json.dumps({"type": "object", "properties": properties})
        given = {"schema": schema, "schemaType": "JSON"}
        schema_id = self._schemas.register("orders-value", given)
        head = b"\x00" + schema_id.to_bytes(4, "big")
        write_topic(self._cluster, "orders", {0: [head + json.dumps(v).encode() for v in values]})
        return schema_id

    def declare(self, **configs: str) -> None:
        given = {PREFIX + name.replace("_", "."): value for name, value in configs.items()}
        configure(self._cluster, "orders", given)

    def materialize(self) -> TableOutcome:
        outcomes: list[TableOutcome] = []
        tables = DeclaredTables(str(self._cluster))
        tables.catch_up(all_of_them=True, on_table=outcomes.append)
        tables.close()
        return outcomes[0]

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        held = DeltaTable(self._cluster / "tables" / name).to_pyarrow_table().to_pylist()
        return sorted(held, key=lambda row: row["_offset"])


def test_a_table_follows_the_ids_of_its_values(tmp_path: Path) -> None:
    with serve_schemas() as (url, schemas):
        topic = Topic(tmp_path / "cluster", schemas)
        number, text = {"type": "integer"}, {"type": ["null", "string"]}
        topic.write({"id": number}, {"id": 1}, {"id": 2, "unheard": "of"})
        topic.declare(enable="true", value_format="json", schema_registry_url=url)
        assert topic.materialize().error is None
        assert [row["id"] for row in topic.rows()] == [1, 2]
        assert "unheard" not in topic.rows()[0]

        places = {"type": "array", "items": {"type": "object", "properties": {"city": text}}}
        later = {"id": 3, "name": "x", "places": [{"city": "Oslo"}]}
        topic.write({"id": number, "name": text, "places": places}, later)
        assert topic.materialize().error is None
        rows = topic.rows()
        assert {name: rows[2][name] for name in later} == later
        assert (rows[0]["name"], rows[0]["places"]) == (None, None)

        broken = topic.write({"id": number, "meta": {"type": "object"}}, {"id": 4, "meta": {}})
        topic.write({"id": number}, {"id": 5})
        error = topic.materialize().error
        assert "topic orders, partition 0, offset 3" in str(error)
        assert f"schema {broken}: field meta is an object that names no fields" in str(error)
        topic.declare(on_error="dead_letter")
        outcome = topic.materialize()
        assert (outcome.error, outcome.result.dead_letters) == (None, 1)
        assert [row["id"] for row in topic.rows()] == [1, 2, 3, 5]
        (letter,) = topic.rows("orders__dlq")
        assert (letter["_offset"], letter["schema_id"]) == (3, broken)


def test_a_conflict_costs_later_values_none_of_their_fields(tmp_path: Path) -> None:
    with serve_schemas() as (url, schemas):
        cluster = tmp_path / "cluster"
        topic = Topic(cluster, schemas)
        number, text = {"type": "integer"}, {"type": "string"}
        topic.write({"id": number}, {"id": 0})
        topic.declare(
            enable="true", value_format="json", schema_registry_url=url, on_error="dead_letter"
        )
        catalog = store_reader(str(cluster)).open_catalog()
        (declared,) = declared_tables(catalog.state).values()
        assert not isinstance(declared, SettingsError)
        settings = declared_settings(declared, str(cluster))
        run = TableRun(settings, store_reader(str(cluster)), Unguarded())
        run.catch_up(catalog)
        topic.write({"id": text}, {"id": "one"})
        topic.write({"ID": number}, {"ID": 2})
        run.catch_up(store_reader(str(cluster)).open_catalog())
        topic.write({"id": number, "name": text}, {"id": 3, "name": "x"})
        run.catch_up(store_reader(str(cluster)).open_catalog())
        version = DeltaTable(settings.table.removeprefix("file:")).version()
        topic.write({"id": text, "name": text}, {"id": "four", "name": "y"})
        run.catch_up(store_reader(str(cluster)).open_catalog())
        assert DeltaTable(settings.table.removeprefix("file:")).version() == version + 1
        assert [(row["id"], row["name"]) for row in topic.rows()] == [(0, None), (3, "x")]
        letters = topic.rows("orders__dlq")
        assert [letter["_offset"] for letter in letters] == [1, 2, 4]
        assert "field ID: the table has column id" in letters[1]["error"]
