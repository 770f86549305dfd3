"""SQL cells of a notebook, in a real IPython shell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.notebook_shell import notebook_shell
from tests.support.topic_writer import write_topic


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("LAKEHEAD_PATH", str(tmp_path))
    yield from notebook_shell()


def test_a_cell_of_sql_is_a_frame(
    shell: Any, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_topic(tmp_path / "store", "words", {0: [b"a", b"b", b"a"]})
    shell.run_cell("%load_ext lakehead.lake.notebook")
    count = "SELECT CAST(value AS STRING) AS word, count(*) AS n FROM words GROUP BY 1 ORDER BY n"
    found = shell.run_cell(f"%%lakehead --into counted\n-- words;\n{count};").result
    assert found.to_dict("list") == {"word": ["b", "a"], "n": [1, 2]}
    assert shell.run_cell('counted["n"].sum()').result == 3
    assert len(shell.run_cell("%%lakehead --rows 1\nSELECT * FROM words").result) == 1
    assert shell.run_cell("%%lakehead\nCREATE TEMP VIEW one AS SELECT 1 AS x").result is None
    assert shell.run_cell("%%lakehead\nSELECT x FROM one; SELECT x + 1 AS y FROM one").result[
        "y"
    ].tolist() == [2]
    capsys.readouterr()
    assert not shell.run_cell("%%lakehead\nSELECT nothing FROM words").success
    out, err = capsys.readouterr()
    assert "UsageError" in out + err
    assert "`nothing`" in out + err
    assert "Traceback" not in out + err
