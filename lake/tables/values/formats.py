"""Opens the decoder that a topic declares."""

from lake.tables.registry import schema_registry
from lake.tables.values.decoder import ValueDecoder, ValueSpec
from storage.errors import SettingsError


def open_decoder(spec: ValueSpec) -> ValueDecoder:
    """Return the decoder of a declaration. Raises SettingsError for one that cannot work."""
    if spec.value_format == "raw":
        from lake.tables.values.raw import RawValues

        return RawValues()
    if spec.value_format == "json":
        from lake.tables.values.json_values import JsonValues

        return JsonValues(spec)
    registry = schema_registry(spec.registry) if spec.registry else None
    if spec.value_format == "avro":
        from lake.tables.values.avro_values import AvroValues

        return AvroValues(spec, registry)
    if spec.value_format == "protobuf":
        from lake.tables.values.protobuf_values import ProtobufValues

        return ProtobufValues(spec, registry)
    if spec.value_format == "debezium":
        from lake.tables.values.debezium_values import DebeziumValues

        return DebeziumValues(spec, registry)
    raise SettingsError(
        f"value format {spec.value_format!r} is not one of raw, json, avro, debezium"
    )
