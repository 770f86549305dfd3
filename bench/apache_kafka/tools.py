"""Apache Kafka's command-line tools, by the names of their scripts."""

import subprocess
from collections.abc import Sequence

from bench.apache_kafka.jars import jars_directory

MAIN_CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-compatibility": "org.apache.kafka.tools.ClientCompatibilityTest",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-server-start": "kafka.Kafka",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
"""JVM options for a tool that lives a second or two."""

LONG_RUN = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Xmx512m")
"""JVM options for a tool that is measured: those of Kafka's own scripts."""


def command(tool: str, *arguments: str, jvm: Sequence[str] = QUICK_START) -> list[str]:
    """The command line that runs `tool` (a script name such as `kafka-topics`)."""
    return [
        "java",
        *jvm,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{jars_directory()}/*",
        MAIN_CLASSES[tool],
        *arguments,
    ]


def run(
    tool: str,
    *arguments: str,
    stdin: str | None = None,
    timeout_s: float = 60.0,
    jvm: Sequence[str] = QUICK_START,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end: exit status, stdout and stderr.

    A bad exit status is returned, not raised. Raises MissingTool (no Java, no jars) and
    subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command(tool, *arguments, jvm=jvm),
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
