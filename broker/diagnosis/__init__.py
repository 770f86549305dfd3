"""Diagnosis: findings about a machine, its store, its log and its cluster, each with advice.

Reading and judging are apart: facts are read by functions that touch the machine, findings are
made of facts by pure functions.
"""
