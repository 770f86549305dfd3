"""Declarations of tables: the topic configs `lakehead.table.*`, schemas and places.

The broker checks what is set by them, and the lake makes tables by them, so both judge alike.
"""
