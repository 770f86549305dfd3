"""Entries of tables in catalogs: Glue by moto, a Hive metastore by Spark's own jars, and Unity
Catalog by a server that keeps its rules (`tests/support/unity_server.py`).
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehead.lake.catalogs.named_catalogs import CATALOGS, open_table_catalog
from lakehead.lake.catalogs.table_entry import (
    CatalogRejected,
    CatalogUnavailable,
    TableCatalog,
    TableEntry,
    entry_of,
)
from lakehead.lake.declaration.table_declaration import PREFIX, TableDeclaration
from lakehead.lake.jobs.catalog_publisher import CatalogEntries, CatalogPublisher
from lakehead.storage.errors import SettingsError
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.emulated_aws import emulated_aws
from tests.support.hive_metastore import hive_metastore
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic
from tests.support.unity_server import unity_server
from tests.support.waiting import wait_until

DAY_MS = 86_400_000
BEGUN = 1_700_000_000_000


class Orders:
    """A topic with a table that is partitioned by day, and has a field with fields."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.cluster = folder / "cluster"
        self.place = self.cluster / "tables" / "orders"
        self._written = 0
        self.write()
        self.configs = {
            f"{PREFIX}{name.replace('_', '.')}": value
            for name, value in {
                "enable": "true",
                "value.format": "json",
                "partition.by": "day(_timestamp)",
                "comment": "Orders of the shop",
                "owner": "shop",
                **configs,
            }.items()
        }
        configure(self.cluster, "orders", self.configs)

    def write(self, **fields: Any) -> None:
        values = [
            TestRecord(
                offset=0,
                timestamp=BEGUN + n * DAY_MS // 10,
                value=json.dumps({"id": n, "line": {"Sku": "a", "n": n}} | fields).encode(),
            )
            for n in range(self._written, self._written + 20)
        ]
        self._written += 20
        write_topic(self.cluster, "orders", {0: values}, partitions=1, batch_records=10)

    def materialize(self) -> None:
        materialize_all(self.cluster)

    def entry(self, name: str, **changes: Any) -> TableEntry:
        declared = TableDeclaration.parse(
            "orders", "id-1", self.configs | {f"{PREFIX}catalog.name": name}
        )
        return replace(entry_of(declared, str(self.place)), **changes)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Orders:
    orders = Orders(tmp_path_factory.mktemp("orders"))
    orders.materialize()
    return orders


def catalogs_file(folder: Path, **options: str) -> dict[str, str]:
    """Return the environment of a file with one catalog, `lake`."""
    path = folder / "catalogs.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    path.write_text("\n".join(["[lake]", *lines]))
    return {CATALOGS: str(path)}


class Rig:
    """A catalog, the names that it takes, and a view of its entries from outside of our code."""

    def __init__(
        self,
        catalog: TableCatalog,
        name: Callable[[str], str],
        tables: Callable[[], Mapping[str, Mapping[str, Any]]],
        add_foreign: Callable[[str], None],
    ) -> None:
        self.catalog = catalog
        self.name = name
        self.tables = tables
        """Entries by their last name, each with `location`, `columns` (name to type), the `fields`
        of one, `partitions`, `owner`, `comment` and `properties`.
        """
        self.add_foreign = add_foreign
        """Have another user make a table of a last name."""


def fields_of(columns: list[dict[str, str]]) -> list[str]:
    """Return the fields of the column `line`, by its type as Hive writes it."""
    found = [column["Type"] for column in columns if column["Name"] == "line"]
    inner = found[0].removeprefix("struct<").removesuffix(">") if found else ""
    return [field.partition(":")[0] for field in inner.split(",") if field]


@contextmanager
def glue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with emulated_aws(folder, monkeypatch, bucket="lake") as aws:
        client = aws.client("glue")

        def tables() -> dict[str, dict[str, Any]]:
            found = client.get_tables(DatabaseName="shop")["TableList"]
            return {
                table["Name"]: {
                    "location": table["StorageDescriptor"]["Location"],
                    "columns": {
                        column["Name"]: column["Type"]
                        for column in (
                            *table["StorageDescriptor"]["Columns"],
                            *table["PartitionKeys"],
                        )
                    },
                    "fields": fields_of(table["StorageDescriptor"]["Columns"]),
                    "partitions": [column["Name"] for column in table["PartitionKeys"]],
                    "owner": table.get("Owner", ""),
                    "comment": table.get("Description", ""),
                    "properties": table["Parameters"],
                }
                for table in found
            }

        def add_foreign(name: str) -> None:
            client.create_database(DatabaseInput={"Name": "shop"})
            client.create_table(
                DatabaseName="shop",
                TableInput={
                    "Name": name,
                    "StorageDescriptor": {"Columns": [], "Location": "s3://else/where"},
                    "PartitionKeys": [],
                    "Parameters": {},
                },
            )

        catalog = open_table_catalog("lake", catalogs_file(folder, type="glue", region="us-east-1"))
        yield Rig(catalog, lambda table: f"shop.{table}", tables, add_foreign)


@contextmanager
def unity(folder: Path, _monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with unity_server() as server:

        def tables() -> dict[str, dict[str, Any]]:
            return {
                table["name"]: {
                    "location": table["storage_location"],
                    "columns": {column["name"]: column["type_text"] for column in table["columns"]},
                    "fields": [
                        field["name"]
                        for column in table["columns"]
                        if column["name"] == "line"
                        for field in json.loads(column["type_json"])["type"]["fields"]
                    ],
                    "partitions": [
                        column["name"]
                        for column in table["columns"]
                        if column.get("partition_index") is not None
                    ],
                    "owner": table["properties"].get("owner", ""),
                    "comment": table.get("comment", ""),
                    "properties": table["properties"],
                }
                for table in server.tables("unity", "shop")
            }

        def add_foreign(name: str) -> None:
            server.add_table("unity", "shop", name, location=(folder / "else").as_uri())

        catalog = open_table_catalog("lake", catalogs_file(folder, type="unity", uri=server.uri))
        yield Rig(catalog, lambda table: f"unity.shop.{table}", tables, add_foreign)


BOTH = pytest.mark.parametrize("served", [glue, unity])


@BOTH
def test_an_entry_leads_to_the_table_and_says_of_which_topic_it_is(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig:
        assert rig.catalog.put(orders.entry(rig.name("orders")))
        found = rig.tables()["orders"]
        assert found["location"] == orders.place.as_uri()
        assert found["columns"] | {"line": "", "id": ""} == {
            "id": "",
            "line": "",
            "_topic": "string",
            "_partition": "int",
            "_offset": "bigint",
            "_timestamp": "timestamp",
            "_key": "binary",
            "_headers": "array<struct<key:string,value:binary>>",
            "_date": "date",
        }
        assert found["fields"] == ["Sku", "n"], "names of fields keep their letters"
        assert found["partitions"] == ["_date"]
        assert (found["owner"], found["comment"]) == ("shop", "Orders of the shop")
        assert found["properties"]["lakehead.topic"] == "orders"
        assert found["properties"]["lakehead.freshness.ms"] == "60000"
        assert not rig.catalog.put(orders.entry(rig.name("orders"))), "nothing has changed"


@BOTH
def test_a_changed_table_has_one_entry_with_its_columns(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig:
        rig.catalog.put(orders.entry(rig.name("orders")))
        entry = orders.entry(rig.name("orders"))
        narrower = tuple(column for column in entry.columns if column.name != "line")
        assert rig.catalog.put(replace(entry, columns=narrower, comment="Fewer"))
        found = rig.tables()
        assert list(found) == ["orders"]
        assert "line" not in found["orders"]["columns"]
        assert found["orders"]["comment"] == "Fewer"


@BOTH
def test_a_new_name_takes_the_place_of_the_former_one(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig:
        other = orders.entry(rig.name("others"))
        rig.catalog.put(
            replace(
                other,
                location=f"{other.location}-2",
                properties={**other.properties, "lakehead.topic.id": "id-2"},
            )
        )
        rig.catalog.put(orders.entry(rig.name("orders")))
        rig.catalog.put(orders.entry(rig.name("purchases")))
        assert set(rig.tables()) == {"others", "purchases"}


@BOTH
def test_an_entry_that_another_user_made_is_left_alone(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig:
        rig.add_foreign("orders")
        with pytest.raises(CatalogRejected, match="orders already"):
            rig.catalog.put(orders.entry(rig.name("orders")))
        assert rig.tables()["orders"]["location"] != orders.place.as_uri()


@BOTH
def test_a_topic_that_was_made_again_keeps_the_entry_of_its_table(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig:
        entry = orders.entry(rig.name("orders"))
        rig.catalog.put(entry)
        again = replace(entry, properties={**entry.properties, "lakehead.topic.id": "id-2"})
        assert rig.catalog.put(again)
        assert rig.tables()["orders"]["properties"]["lakehead.topic.id"] == "id-2"


@BOTH
def test_a_name_with_the_wrong_number_of_parts_is_refused(
    served: Any, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as rig, pytest.raises(SettingsError, match="parts"):
        rig.catalog.put(orders.entry("a.b" if served is unity else "a.b.c"))


@pytest.mark.slow  # three JVMs
def test_a_metastore_leads_spark_to_the_table(orders: Orders, tmp_path: Path) -> None:
    with hive_metastore(tmp_path) as uri:
        environment = catalogs_file(tmp_path, type="hive", uri=uri)
        catalog = open_table_catalog("lake", environment)
        entry = orders.entry("shop.orders")
        assert catalog.put(entry)
        assert not catalog.put(entry)
        assert not open_table_catalog("lake", environment).put(entry), "it is there already"
        elsewhere = replace(entry, location=f"{entry.location}-2")
        with pytest.raises(CatalogRejected, match=r"shop\.orders already"):
            open_table_catalog("lake", environment).put(elsewhere)


def test_a_catalog_that_is_down_delays_its_entry_and_not_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path, catalog="lake", **{"catalog.name": "unity.shop.orders"})
    with unity_server() as server:
        environment = catalogs_file(tmp_path, type="unity", uri=server.uri)
        monkeypatch.setenv(CATALOGS, environment[CATALOGS])
        failed = threading.Event()

        def failing(name: str) -> TableCatalog:
            if not failed.is_set():
                failed.set()
                raise CatalogUnavailable("the catalog is down")
            return open_table_catalog(name)

        orders.materialize()  # published at the end of the run
        assert [table["name"] for table in server.tables("unity", "shop")] == ["orders"]
        server.remove_table("unity.shop.orders")
        publisher = CatalogPublisher(str(orders.cluster), (CatalogEntries(failing),))
        publisher.take(TableDeclaration.parse("orders", "id-1", orders.configs))
        assert wait_until(lambda: bool(server.tables("unity", "shop")), 30.0)
        publisher.close()
        assert failed.is_set()


def test_a_catalog_that_lies_is_unavailable(orders: Orders, tmp_path: Path) -> None:
    with unity_server(response=b"<html>Welcome</html>") as server:
        catalog = open_table_catalog("lake", catalogs_file(tmp_path, type="unity", uri=server.uri))
        with pytest.raises(CatalogUnavailable, match="not a JSON object"):
            catalog.put(orders.entry("unity.shop.orders"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "polaris"}, "one of: unity, glue, hive"),
        ({"type": "unity"}, "needs the option uri"),
        ({"type": "glue", "url": "x"}, "unknown options url"),
    ],
)
def test_a_wrong_file_of_catalogs_is_refused_in_one_line(
    options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        open_table_catalog("lake", catalogs_file(tmp_path, **options))


def test_a_catalog_that_no_file_names_is_refused() -> None:
    with pytest.raises(SettingsError, match=CATALOGS):
        open_table_catalog("lake", {})


@pytest.mark.parametrize("name", ["orders", "a..b", "a.b.c.d", "a b.c"])
def test_a_name_that_no_catalog_takes_is_refused_in_a_declaration(name: str) -> None:
    with pytest.raises(SettingsError, match=r"catalog\.name"):
        TableDeclaration.parse("orders", "", {f"{PREFIX}catalog.name": name})
