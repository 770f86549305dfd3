"""What a notebook shows of a cluster, in a real IPython shell; SQL cells are in tests/spark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.notebook import Cluster
from lakehead.storage.errors import SettingsError, UnknownTopic
from tests.support.declared_topics import configure
from tests.support.notebook_shell import notebook_shell
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic


def record(timestamp: int, value: Any, key: bytes | None = None) -> TestRecord:
    encoded = value if isinstance(value, bytes) else json.dumps(value).encode()
    return TestRecord(offset=0, timestamp=timestamp, key=key, value=encoded, headers=())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a topic that declares a table, and one of bytes."""
    folder = tmp_path_factory.mktemp("data")
    root = folder / "store"
    flights = {
        0: [record(n, {"origin": f"o{n}", "delay": n}) for n in range(0, 40, 2)],
        1: [record(n, {"origin": f"<b>{n}", "delay": n}) for n in range(1, 41, 2)],
    }
    write_topic(root, "flights", flights, partitions=2, batch_records=3)
    configure(
        root, "flights", {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
    )
    write_topic(root, "raw", {0: [record(7, b"\xff", b"k")]})
    write_topic(root, "__own", {0: [b"x"]})
    write_topic(root, "empty", {})
    return folder


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    yield from notebook_shell()


def test_a_cluster_shows_its_topics(data: Path) -> None:
    cluster = Cluster(str(data))
    assert list(cluster) == ["empty", "flights", "raw"]
    assert "flights" in cluster
    assert cluster.topics["offsets"].tolist() == [0, 40, 1]
    assert "flights" in cluster._repr_html_()
    assert "__own" not in cluster._repr_html_()
    assert repr(cluster).endswith("topics empty, flights, raw")
    assert Cluster(str(data / "store")).path == cluster.path == f"file:{data}/store"
    with pytest.raises(UnknownTopic, match="nothing"):
        cluster["nothing"]
    with pytest.raises(SettingsError, match="no Lakehead cluster"):
        Cluster(str(data / "elsewhere"))


def test_the_ends_of_a_topic_are_rows_in_order_of_time(data: Path) -> None:
    flights = Cluster(str(data))["flights"]
    assert flights.head(3)["delay"].tolist() == [0, 1, 2]
    assert flights.tail(3)["origin"].tolist() == ["<b>37", "o38", "<b>39"]
    assert flights.tail(1000)["delay"].tolist() == list(range(40))
    assert flights.head(2, decode="none")["value"].tolist()[0] == b'{"origin": "o0", "delay": 0}'
    assert [c for c in flights.head(1).columns if c[0] != "_"] == ["origin", "delay"]
    assert flights.scan(columns=["value"]).read_all().num_rows == 40
    assert flights.configs["lakehead.table.value.format"] == "json"
    with pytest.raises(SettingsError, match="decode is declared, json or none"):
        flights.head(decode="avro")  # type: ignore[arg-type]


def test_a_topic_of_bytes_and_one_of_nothing(data: Path) -> None:
    cluster = Cluster(str(data))
    assert cluster["raw"].tail()[["key", "value"]].to_numpy().tolist() == [[b"k", b"\xff"]]
    assert len(cluster["empty"].head()) == 0
    assert "empty" in cluster["empty"]._repr_html_()
    assert "xff" in cluster["raw"]._repr_html_()


def test_a_topic_and_its_table_in_a_shell(data: Path, shell: Any) -> None:
    shell.run_cell("%load_ext lakehead.lake.notebook")
    assert shell.run_cell(f"cluster = %lakehead {data}").success
    told = shell.run_cell('cluster["flights"]').result
    formats, _ = shell.display_formatter.format(told)
    assert "&lt;b&gt;39" in formats["text/html"], "values are escaped"
    assert formats["text/plain"].startswith("Topic('flights'")
    assert shell.user_ns["cluster"]._ipython_key_completions_() == ["empty", "flights", "raw"]
    missing = shell.run_cell('cluster["flights"].table')
    assert "run lakehead materialize flights" in str(missing.error_in_exec)
    tables = DeclaredTables(f"file:{data}/store", workers=1)
    tables.catch_up(all_of_them=True, on_table=lambda _: None)
    tables.close()
    total = shell.run_cell('cluster["flights"].table.to_pandas()["delay"].sum()').result
    assert total == sum(range(40))
    assert shell.run_cell('cluster.tables["records_behind"].tolist()').result == [0]


def test_what_is_wrong_is_one_line(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%load_ext lakehead.lake.notebook")
    capsys.readouterr()
    for cell, words in (
        ("%lakehead /no/where", "no Lakehead cluster at"),
        ("%lakehead a b", "names the cluster"),
        ("%%lakehead --rows many\nSELECT 1", "--rows N"),
    ):
        assert not shell.run_cell(cell).success
        out, err = capsys.readouterr()
        assert words in out + err
        assert "Traceback" not in out + err
