"""One Spark session for all Spark tests of a run: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session(app_name="lakehead-tests")
    yield session
    session.stop()
