"""The outside world's conventions: Airflow, schema registries, sources and sinks."""
