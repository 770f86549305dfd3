"""Maintenance: the loop around `lakehead.storage.upkeep`, which `lakehead maintain` and `lakehead
start` run in a process of its own.
"""
