"""Garbage: which objects of a bucket nothing needs any more, and how they go.

`judgement` decides, `sweep` plans and deletes over the whole bucket, `collector` is what a running
node does by itself, `leak_check` compares the bucket with the metadata.
"""
