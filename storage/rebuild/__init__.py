"""Rebuild a cluster's catalog from its objects alone, when the metadata is lost.

`found` reads each object's description of itself, `catalog` decides which ranges count and makes a
state of them, `run` does the whole rebuild and publishes the result.
"""
