"""Opens the decoder that a topic declares."""

from lakehead.lake.tables.registry import schema_registry
from lakehead.lake.tables.values.calendar_range import WithinCalendar
from lakehead.lake.tables.values.decoder import ValueDecoder, ValueSpec
from lakehead.storage.errors import SettingsError


def open_decoder(spec: ValueSpec) -> ValueDecoder:
    """Return the decoder of a declaration. Raises SettingsError for one that cannot work."""
    if spec.value_format == "raw":
        from lakehead.lake.tables.values.raw import RawValues

        return RawValues()
    return WithinCalendar(_decoder_of_format(spec))


def _decoder_of_format(spec: ValueSpec) -> ValueDecoder:
    registry = schema_registry(spec.registry) if spec.registry else None
    if spec.value_format == "json":
        from lakehead.lake.tables.values.json_values import json_values

        return json_values(spec, registry)
    if spec.value_format == "avro":
        from lakehead.lake.tables.values.avro import avro_values

        return avro_values(spec, registry)
    if spec.value_format == "protobuf":
        from lakehead.lake.tables.values.protobuf import protobuf_values

        return protobuf_values(spec, registry)
    if spec.value_format == "debezium":
        from lakehead.lake.tables.values.debezium import DebeziumValues

        return DebeziumValues(spec, registry)
    raise SettingsError(
        f"value format {spec.value_format!r} is not one of raw, json, avro, protobuf, debezium"
    )
