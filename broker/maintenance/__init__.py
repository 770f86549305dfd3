"""Maintenance: the loop around `lakehead.storage.maintenance`.

`lakehead maintain` runs it, and so does `lakehead start`, in a process of its own.
"""
