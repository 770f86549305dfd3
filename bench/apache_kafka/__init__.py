"""Apache Kafka, from its Maven artefacts: the broker to compare with, and its tools.

Nothing of it is in this repository. `jars` fetches them once into a cache, `tools` runs the
command-line tools on them, and `server` starts a single-node cluster.
"""
