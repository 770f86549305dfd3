"""What Kafka's tools may say otherwise of Lakehead, and why: all that is known, in one table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NO_NEW_GROUPS = "Streams groups are not served, and states of share groups are for nodes alone."
_DEAD_LETTERS = "Dead letters of share groups (KIP-1191) have configs that Kafka has since 4.4."
_MESSAGE = re.compile("(Exception:| : ).*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Lines that match `lines` in the output of calls that match `calls` do not count, on either
    side; or, with `is_wording`, do up to the error that they name. What is left has to be the same.
    """

    calls: str
    lines: str
    reason: str
    is_wording: bool = False

    def is_about(self, line: str) -> bool:
        """Return whether this is about a call."""
        return re.search(self.calls, line) is not None

    def hides(self, line: str) -> bool:
        """Return whether a line does not count for this."""
        return re.search(self.lines, line) is not None

    def rest(self, lines: Sequence[str]) -> list[str]:
        """Return what counts of the lines."""
        if self.is_wording:
            return [_MESSAGE.sub(r"\1", line) if self.hides(line) else line for line in lines]
        return [line for line in lines if not self.hides(line)]


def _worded(calls: str, lines: str) -> Difference:
    reason = "The same error, in words of its own."
    return Difference(calls=calls, lines=lines, reason=reason, is_wording=True)


_TOPICS = (
    _worded(r"--topic 'a b'", "InvalidTopic|opic.* name"),
    _worded("--replication-factor 9", "(?i)replication ?factor 9|9 time"),
    _worded("--alter .*--partitions [34]", r" partition\(s\)"),
    _worded("1,1,1,1,1,9", r"broker 9|id 9"),
    _worded("--topic nowhere --partition 0", "nowhere-0|Suppr"),
)

_OTHER_DEFAULTS = (
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "leader.imbalance.check.interval.seconds",
    "max.connections",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "security.inter.broker.protocol",
    "socket.receive.buffer.bytes",
    "ssl.keystore.type",
    "ssl.truststore.type",
)
_SET_ON_ONE_SIDE = (
    "controller.listener.names",
    "controller.quorum.voters",
    "group.initial.rebalance.delay.ms",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)
_JAVA_CLASSES = (
    "metric.reporters",
    "principal.builder.class",
    "remote.log.metadata.manager.class.name",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
)
_NOT_KAFKAS = (
    *("advertised.host", "advertised.port", "block.cache.size", "cache.size", "cluster.id"),
    *("cold.read.size", "data", "host", "host.id", "index.cache.size", "log.level", "maintain"),
    *("leader.imbalance.per.broker.percentage", "metrics.port", "nodes", "port", "store", "wal"),
    *("shutdown.timeout.ms", "write.buffer.bytes", "accept.log.loss", "ec2.notices", "log.format"),
    *("group.memory.size", "maintain.tables", "max.producer.ids.per.partition"),
    *("metrics.host", "metrics.tokens", "metrics.users"),
    *("request.memory.size", "ssl.handshake.timeout.ms", "ssl.handshakes.max"),
    # Of Kafka's authorizer, which alone knows them there.
    *("allow.everyone.if.no.acl.found", "super.users"),
)
_NOT_KAFKAS_PREFIXES = (
    "audit",
    "bootstrap",
    "encryption",
    "extra",
    "garbage",
    "maintenance",
    "metadata.checkpoint",
    "metadata.poll",
    "metrics.ssl",
    "registry",
    "replica.read",
    "sts",
    "table",
    "telemetry.otlp",
    "upload",
    "wal",
)


def _named(names: Sequence[str], end: str = "=") -> str:
    return f"^ ?({'|'.join(map(re.escape, names))}){end}"


_ALL_OF_BROKER = r"--broker 1 --describe --all"
_CONFIGS = (
    Difference(
        calls="kafka-configs (--entity-type topics|.*--describe --all)",
        lines=r"^ ?lakehead\.",
        reason="Lakehead's topics may declare a table (docs/tables.md).",
    ),
    Difference(
        calls="--broker 1 --(alter --add-config nope|describe)",
        lines="nope|^status|^Completed",
        reason="Kafka keeps broker configs that it does not know; here they are refused.",
    ),
    Difference(
        calls="--broker 1 --describe",
        lines=_named(_OTHER_DEFAULTS),
        reason="Other defaults (docs/settings.md).",
    ),
    Difference(
        calls=_ALL_OF_BROKER,
        lines=_named(_SET_ON_ONE_SIDE),
        reason="Settings that only one of the two servers was started with.",
    ),
    Difference(
        calls=_ALL_OF_BROKER,
        lines=_named(_JAVA_CLASSES),
        reason="No Java classes are loaded.",
    ),
    Difference(
        calls=_ALL_OF_BROKER,
        lines=_named(_NOT_KAFKAS) + "|" + _named(_NOT_KAFKAS_PREFIXES, r"\."),
        reason="Settings that Kafka does not have.",
    ),
    Difference(
        calls="broker-loggers",
        lines="^ ?(root|org.apache)",
        reason="The one logger is the node's, and its level another.",
    ),
    Difference(
        calls="--describe --all",
        lines=r"^ ?errors\.deadletterqueue\.",
        reason=_DEAD_LETTERS,
    ),
    _worded("share.auto.offset.reset=soon", "InvalidConfigurationException"),
)

_GROUPS = (
    Difference(
        calls=r"kafka-streams-groups --group \w+ --describe",
        lines="is not a streams group|STREAMS_GROUP_DESCRIBE",
        reason="Streams groups are not served.",
    ),
)

_CLUSTER = (
    Difference(
        calls=r"kafka-topics --describe($| --topics-with-overrides)",
        lines="Topic: squashed\t? ?TopicId",
        reason="The tool's order of configs depends on how many a topic has.",
    ),
    Difference(
        calls="kafka-broker-api-versions",
        lines="ShareGroupState|Streams",
        reason=_NO_NEW_GROUPS,
    ),
    Difference(
        calls="kafka-broker-api-versions",
        lines="Telemetry",
        reason="Kafka takes metrics of clients (KIP-714) only with a plugin.",
    ),
    Difference(
        calls="kafka-broker-api-versions",
        lines="RaftVoter",
        reason="There are no voters of a quorum.",
    ),
    Difference(
        calls="kafka-broker-api-versions",
        lines="InitProducerId",
        reason="InitProducerId v6 is answered, which Kafka 4.3 keeps back as unstable.",
    ),
    Difference(
        calls="kafka-metadata-quorum",
        lines="^(CurrentVoters|HighWatermark|LeaderEpoch):|Leader ?$",
        reason="The metadata log has other offsets and epochs, and no listener of its own.",
    ),
    Difference(
        calls="kafka-features describe",
        lines="^Feature:",
        reason="Features are metadata.version, with levels of its own, and transaction.version.",
    ),
    Difference(
        calls="kafka-features (upgrade|downgrade)",
        lines=r"^status|(group|nope|transaction).version|operation",
        reason="Of features only metadata.version can be raised, and none lowered.",
    ),
)

KNOWN = (*_TOPICS, *_CONFIGS, *_GROUPS, *_CLUSTER)
