"""Catalogs in which tables are found by name: AWS Glue, Unity Catalog, a Hive metastore."""
