"""One Spark session for all Spark tests of a run: starting one takes seconds."""

from collections.abc import Iterator
from importlib.metadata import version

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.spark import spark_session

DELTAS_SPARK = "4.2"
"""The version that Delta's jars are for; `make spark-versions` runs tests by others, without it."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    has_delta = version("pyspark").rpartition(".")[0] == DELTAS_SPARK
    session = spark_session(app_name="lakehead-tests", delta=has_delta)
    yield session
    session.stop()
