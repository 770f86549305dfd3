"""Maintenance: the loop around `storage.upkeep`, which `lakehead maintain` and `lakehead start` run
in a process of its own.
"""
