"""librdkafka's own performance tool, whose clients leave more of a core to the server than Java's.

Nothing of it is in this repository. `program` builds it once into a cache, `performance` runs it.
"""
