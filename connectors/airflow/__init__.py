"""The Airflow provider: connection, hook, operators, sensors, assets and lineage.

The modules that Airflow imports when it parses a DAG are light: the lake, its libraries and the
store are imported where a task runs (tests/airflow/test_airflow_imports.py holds it to that).
"""
