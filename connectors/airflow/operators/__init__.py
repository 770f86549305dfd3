"""Operators: one for a whole job, three that map a job over its items, and those of tables."""
