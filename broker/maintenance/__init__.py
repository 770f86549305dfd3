"""Maintenance: the loop over the jobs that have a part in it (`lakehead.storage.jobs`).

`lakehead maintain` runs it, and so does `lakehead start`, in a process of its own.
"""
