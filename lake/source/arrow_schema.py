"""The Arrow schema of a Spark schema, by whichever Spark runs."""

import inspect
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_HAS_TIMEZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
"""From Spark 4.2 on. Those before it always have timestamps in UTC."""


def arrow_schema_of(schema: StructType) -> Any:
    """Return a `pyarrow.Schema` whose timestamps are in UTC."""
    if _HAS_TIMEZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
