"""Whether a cluster's objects are what its metadata says: `catalog` looks at the metadata and at
what is listed, `objects` reads objects, `damage` says what was found and what to do.
"""
