"""Fetching Delta's jars when Maven Central is out of reach."""

from pathlib import Path

import pytest

from lakehead.lake.spark_jars import delta_jars
from lakehead.storage.errors import SettingsError


def test_jars_that_cannot_be_fetched_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", nowhere)
    with pytest.raises(SettingsError, match=r"delta-spark.* is Maven Central reachable") as caught:
        delta_jars(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.jars"))  # nothing half-done is taken for the jars
