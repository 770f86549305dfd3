"""A cluster's catalog from its objects alone, for when the metadata is lost.

`found` reads what objects say of themselves, `cover` decides which of them count, `catalog` makes a
state of that, `publish` puts it where nodes look for it.
"""
