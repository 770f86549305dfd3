"""The jars of Apache Kafka: three are named, Ivy finds their dependencies.

KAFKA_VERSION=4.2.0  another release than the default, for benches, comparisons and clients
"""

import os
from pathlib import Path

from bench.maven import Artefact, jars_folder

KAFKA_VERSION = os.environ.get("KAFKA_VERSION") or "4.3.0"
SCALA_VERSION = "2.13"
SLF4J_VERSION = "1.7.36"

_ARTEFACTS = (
    Artefact("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    Artefact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    Artefact("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)
_CONNECT = (
    Artefact("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
    Artefact("org.apache.kafka", "connect-file", KAFKA_VERSION),
    Artefact("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)
_MIRROR_MAKER = (
    Artefact("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
    Artefact("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)
_STREAMS = (
    Artefact("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    Artefact("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)


def jars_directory() -> Path:
    """Folder with Kafka's jars; fetched now if this machine does not have them yet.

    Raises MissingTool if Java or Spark is missing, or the artefacts cannot be fetched.
    """
    return jars_folder(f"kafka-{KAFKA_VERSION}", _ARTEFACTS)


def connect_jars_directory() -> Path:
    """Folder with the jars of Kafka Connect's worker and its file connectors; as above."""
    return jars_folder(f"kafka-connect-{KAFKA_VERSION}", _CONNECT)


def mirror_maker_jars_directory() -> Path:
    """Folder with the jars of MirrorMaker 2; as above."""
    return jars_folder(f"kafka-mirror-maker-{KAFKA_VERSION}", _MIRROR_MAKER)


def clients_jars_directory(version: str) -> Path:
    """Folder with the jars of the Java clients of a release; as above."""
    clients = Artefact("org.apache.kafka", "kafka-clients", version)
    simple = Artefact("org.slf4j", "slf4j-simple", SLF4J_VERSION)
    return jars_folder(f"kafka-clients-{version}", (clients, simple))


def streams_jars_directory() -> Path:
    """Folder with the jars of Kafka Streams; as above."""
    return jars_folder(f"kafka-streams-{KAFKA_VERSION}", _STREAMS)
