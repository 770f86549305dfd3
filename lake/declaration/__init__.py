"""Declarations of tables: the topic configs `lakehead.table.*`, column types in Spark's DDL, Avro
schemas, and the roots of tables. Pure, and without a package beyond the base install.

The broker checks by this package the configs that clients set, and the lake makes tables by it, so
both judge alike. It is the only part of the lake that a broker imports.
"""
