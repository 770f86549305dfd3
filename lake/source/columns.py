"""The schema of the Spark source: that of Spark's Kafka source."""

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakehead.storage.errors import SettingsError

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: Sequence[str] | None) -> StructType:
    """Return the schema of `columns`, or of every column there is."""
    return StructType([StructField(name, _TYPES[name]) for name in columns or _TYPES])


def columns_in(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema names. Raises SettingsError for one that we do not
    have.
    """
    whole = {field.name: field for field in spark_schema(None)}
    for field in schema:
        known = whole.get(field.name)
        if known is None:
            raise SettingsError(f"unknown column {field.name!r}: a topic has {', '.join(whole)}")
        if known.dataType != field.dataType or not field.nullable:
            raise SettingsError(
                f"column {field.name!r} is a nullable {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            )
    if not len(schema):
        raise SettingsError("the schema names no column")
    return tuple(schema.fieldNames())
