"""Every config of brokers that Kafka 4.3 documents: `KAFKA_CONFIGS`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lakehead.broker.configs.definition import ConfigDefinition, ConfigType, Effect
from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigGroup:
    """Configs that are treated alike, a line for each: name, type, Kafka's default (`-`: null,
    `""`: empty), and `dynamic` where Kafka changes it while a broker runs.
    """

    effect: Effect
    reason: str
    configs: str

    def definitions(self) -> Iterator[ConfigDefinition]:
        """Yield the configs."""
        for line in self.configs.split("\n"):
            if not line:
                continue
            name, kind, default, *rest = line.split(" ")
            yield ConfigDefinition(
                name=name,
                kind=ConfigType[kind.upper()],
                default=_DEFAULTS.get(default, default),
                note=self.reason,
                effect=self.effect,
                is_dynamic=rest == ["dynamic"],
            )


_DEFAULTS: Mapping[str, str | None] = {"-": None, '""': ""}


LOG_CONFIGS = (
    ConfigGroup(
        effect=Effect.HONOURED,
        reason="",
        configs="""
advertised.listeners list -
authorizer.class.name string ""
auto.create.topics.enable boolean true
auto.leader.rebalance.enable boolean true
broker.heartbeat.interval.ms int 2000
broker.rack string -
broker.session.timeout.ms int 9000
compression.type string producer dynamic
connection.failed.authentication.delay.ms int 100
connections.max.idle.ms long 600000
connections.max.reauth.ms long 0
default.replication.factor int 1
delegation.token.expiry.check.interval.ms long 3600000
delegation.token.expiry.time.ms long 86400000
delegation.token.max.lifetime.ms long 604800000
delegation.token.secret.key password -
delete.topic.enable boolean true
fetch.max.bytes int 57671680
group.consumer.assignment.interval.ms int 1000
group.consumer.assignors list uniform,range
group.consumer.heartbeat.interval.ms int 5000
group.consumer.max.assignment.interval.ms int 15000
group.consumer.max.heartbeat.interval.ms int 15000
group.consumer.max.session.timeout.ms int 60000
group.consumer.max.size int 2147483647
group.consumer.migration.policy string bidirectional
group.consumer.min.assignment.interval.ms int 0
group.consumer.min.heartbeat.interval.ms int 5000
group.consumer.min.session.timeout.ms int 45000
group.consumer.session.timeout.ms int 45000
group.initial.rebalance.delay.ms int 3000
group.max.session.timeout.ms int 1800000
group.max.size int 2147483647
group.min.session.timeout.ms int 6000
group.share.assignment.interval.ms int 1000
group.share.delivery.count.limit int 5
group.share.heartbeat.interval.ms int 5000
group.share.max.assignment.interval.ms int 15000
group.share.max.delivery.count.limit int 10
group.share.max.heartbeat.interval.ms int 15000
group.share.max.partition.max.record.locks int 4000
group.share.max.record.lock.duration.ms int 60000
group.share.max.session.timeout.ms int 60000
group.share.max.share.sessions int 2000
group.share.max.size int 200
group.share.min.assignment.interval.ms int 0
group.share.min.delivery.count.limit int 2
group.share.min.heartbeat.interval.ms int 5000
group.share.min.partition.max.record.locks int 100
group.share.min.record.lock.duration.ms int 15000
group.share.min.session.timeout.ms int 45000
group.share.partition.max.record.locks int 2000
group.share.record.lock.duration.ms int 30000
group.share.session.timeout.ms int 45000
inter.broker.listener.name string -
leader.imbalance.check.interval.seconds long 300
listener.security.protocol.map string PLAINTEXT:PLAINTEXT
listeners list PLAINTEXT://:9092
log.cleanup.policy list delete dynamic
log.message.timestamp.after.max.ms long 3600000 dynamic
log.message.timestamp.before.max.ms long 9223372036854775807 dynamic
log.message.timestamp.type string CreateTime dynamic
log.retention.bytes long -1 dynamic
log.retention.ms long - dynamic
max.connection.creation.rate int 2147483647 dynamic
max.connections int 2147483647 dynamic
max.connections.per.ip int 2147483647 dynamic
max.connections.per.ip.overrides string "" dynamic
max.incremental.fetch.session.cache.slots int 1000
message.max.bytes int 1048588 dynamic
node.id int -
num.partitions int 1
offset.metadata.max.bytes int 4096
offsets.commit.timeout.ms int 5000
offsets.retention.check.interval.ms long 600000
offsets.retention.minutes int 10080
offsets.topic.num.partitions int 50
producer.id.expiration.ms int 86400000 dynamic
replica.selector.class string -
sasl.enabled.mechanisms list GSSAPI dynamic
sasl.jaas.config password - dynamic
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.mechanism.inter.broker.protocol string GSSAPI dynamic
sasl.oauthbearer.clock.skew.seconds int 30
sasl.oauthbearer.expected.audience list ""
sasl.oauthbearer.expected.issuer string -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
sasl.oauthbearer.jwks.endpoint.url string -
sasl.oauthbearer.scope.claim.name string scope
sasl.oauthbearer.sub.claim.name string sub
sasl.server.callback.handler.class class -
sasl.server.max.receive.size int 524288
security.inter.broker.protocol string PLAINTEXT
share.coordinator.snapshot.update.records.per.snapshot int 500
share.coordinator.state.topic.num.partitions int 50
share.coordinator.write.timeout.ms int 5000
socket.receive.buffer.bytes int 102400
socket.request.max.bytes int 104857600
socket.send.buffer.bytes int 102400
ssl.cipher.suites list "" dynamic
ssl.client.auth string none dynamic
ssl.enabled.protocols list TLSv1.2,TLSv1.3 dynamic
ssl.endpoint.identification.algorithm string https dynamic
ssl.key.password password - dynamic
ssl.keystore.certificate.chain password - dynamic
ssl.keystore.key password - dynamic
ssl.keystore.location string - dynamic
ssl.keystore.password password - dynamic
ssl.keystore.type string JKS dynamic
ssl.principal.mapping.rules string DEFAULT
ssl.truststore.certificates password - dynamic
ssl.truststore.location string - dynamic
ssl.truststore.password password - dynamic
ssl.truststore.type string JKS dynamic
telemetry.max.bytes int 1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
transaction.max.timeout.ms int 900000
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
transaction.state.log.num.partitions int 50
transactional.id.expiration.ms int 604800000
""",
    ),
    ConfigGroup(
        effect=Effect.HONOURED,
        reason="Read where log.retention.ms is not given.",
        configs="""
log.retention.hours int 168
log.retention.minutes int -
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Storage is shared: nothing is replicated.",
        configs="""
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
follower.fetch.last.tiered.offset.enable boolean false
follower.replication.throttled.rate long 9223372036854775807 dynamic
leader.replication.throttled.rate long 9223372036854775807 dynamic
num.replica.alter.log.dirs.threads int -
num.replica.fetchers int 1 dynamic
offsets.topic.replication.factor short 3
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 dynamic
replica.fetch.backoff.ms int 1000
replica.fetch.max.bytes int 1048576
replica.fetch.min.bytes int 1
replica.fetch.response.max.bytes int 10485760
replica.fetch.wait.max.ms int 500
replica.high.watermark.checkpoint.interval.ms long 5000
replica.lag.time.max.ms long 30000
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
replication.quota.window.num int 11
replication.quota.window.size.seconds int 1
transaction.state.log.min.isr int 2
transaction.state.log.replication.factor short 3
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="A partition is a stream of objects, not a folder of files.",
        configs="""
log.dir.failure.timeout.ms long 30000
log.flush.offset.checkpoint.interval.ms int 60000
log.flush.scheduler.interval.ms long 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms int 60000
log.retention.check.interval.ms long 300000
log.roll.hours int 168
log.roll.jitter.hours int 0
num.recovery.threads.per.data.dir int 2 dynamic
offsets.load.buffer.size int 5242880
offsets.topic.compression.codec int 0
offsets.topic.segment.bytes int 104857600
transaction.state.log.load.buffer.size int 5242880
transaction.state.log.segment.bytes int 104857600
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Compaction is a job of `lakehead maintain`, with bounds of its own.",
        configs="""
log.cleaner.backoff.ms long 15000 dynamic
log.cleaner.dedupe.buffer.size long 134217728 dynamic
log.cleaner.enable boolean true
log.cleaner.io.buffer.load.factor double 0.9 dynamic
log.cleaner.io.buffer.size int 524288 dynamic
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 dynamic
log.cleaner.threads int 1 dynamic
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Everything is in the object store in any case.",
        configs="""
remote.fetch.max.wait.ms int 500 dynamic
remote.list.offsets.request.timeout.ms long 30000 dynamic
remote.log.index.file.cache.total.size.bytes long 1073741824 dynamic
remote.log.manager.copier.thread.pool.size int 10 dynamic
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 dynamic
remote.log.manager.copy.quota.window.num int 11
remote.log.manager.copy.quota.window.size.seconds int 1
remote.log.manager.expiration.thread.pool.size int 10 dynamic
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 dynamic
remote.log.manager.fetch.quota.window.num int 11
remote.log.manager.fetch.quota.window.size.seconds int 1
remote.log.manager.follower.thread.pool.size int 2 dynamic
remote.log.manager.task.interval.ms long 30000
remote.log.manager.thread.pool.size int 2
remote.log.metadata.custom.metadata.max.bytes int 128
remote.log.metadata.manager.class.name string -
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100
remote.log.reader.threads int 10 dynamic
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Done in any case, or by other means.",
        configs="""
add.partitions.to.txn.retry.backoff.max.ms int 100
add.partitions.to.txn.retry.backoff.ms int 20
controlled.shutdown.enable boolean true
group.coordinator.rebalance.protocols list classic,consumer,streams
max.request.partition.size.limit int 2000
transaction.partition.verification.enable boolean true dynamic
transaction.two.phase.commit.enable boolean false
""",
    ),
)

THROTTLES = frozenset(
    (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""Configs that Kafka's brokers only have while they are set."""


NODE_CONFIGS = (
    ConfigGroup(
        effect=Effect.REFUSED,
        reason=("Said with data, store, wal, node.id and listeners."),
        configs="""
broker.id int -1
early.start.listeners list -
log.dir list /tmp/kafka-logs
log.dirs list -
metadata.log.dir string -
process.roles list ""
""",
    ),
    ConfigGroup(
        effect=Effect.HONOURED,
        reason=(
            "*, or the one log directory (kafka-log-dirs shows it), for a single broker while it "
            "runs: the broker gets no new partitions (KIP-1066)."
        ),
        configs="""
cordoned.log.dirs list "" dynamic
""",
    ),
    ConfigGroup(
        effect=Effect.REFUSED,
        reason="Names of Java classes: this broker can load none.",
        configs="""
alter.config.policy.class.name class -
config.providers list "" dynamic
create.topic.policy.class.name class -
kafka.metrics.reporters list ""
metric.reporters list - dynamic
security.providers string -
""",
    ),
    ConfigGroup(
        effect=Effect.REFUSED,
        reason="There are no Kerberos and no plugins here, so do not rely on them.",
        configs="""
client.quota.callback.class class -
principal.builder.class class - dynamic
sasl.client.callback.handler.class class -
sasl.kerberos.service.name string - dynamic
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.client.credentials.client.secret password -
sasl.oauthbearer.jwt.retriever.class class -
sasl.oauthbearer.jwt.validator.class class -
ssl.engine.factory.class class - dynamic
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Of Kerberos, of clients of other brokers, and of Java's own TLS.",
        configs="""
sasl.kerberos.kinit.cmd string /usr/bin/kinit dynamic
sasl.kerberos.min.time.before.relogin long 60000 dynamic
sasl.kerberos.principal.to.local.rules list DEFAULT dynamic
sasl.kerberos.ticket.renew.jitter double 0.05 dynamic
sasl.kerberos.ticket.renew.window.factor double 0.8 dynamic
sasl.login.refresh.buffer.seconds short 300 dynamic
sasl.login.refresh.min.period.seconds short 60 dynamic
sasl.login.refresh.window.factor double 0.8 dynamic
sasl.login.refresh.window.jitter double 0.05 dynamic
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string -
sasl.oauthbearer.assertion.claim.exp.seconds int 300
sasl.oauthbearer.assertion.claim.iss string -
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60
sasl.oauthbearer.assertion.claim.sub string -
sasl.oauthbearer.assertion.file string -
sasl.oauthbearer.assertion.private.key.file string -
sasl.oauthbearer.assertion.template.file string -
sasl.oauthbearer.client.credentials.client.id string -
sasl.oauthbearer.scope string -
sasl.oauthbearer.token.endpoint.url string -
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.keymanager.algorithm string SunX509 dynamic
ssl.protocol string TLSv1.3 dynamic
ssl.provider string - dynamic
ssl.secure.random.implementation string - dynamic
ssl.trustmanager.algorithm string PKIX dynamic
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="Metadata is a log in the object store, without a quorum.",
        configs="""
controller.listener.names list ""
controller.quorum.append.linger.ms int 25
controller.quorum.auto.join.enable boolean false
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.max.bytes int 1048576
controller.quorum.fetch.snapshot.max.bytes int 1048576
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quorum.voters list ""
controller.quota.window.num int 11
controller.quota.window.size.seconds int 1
controller.socket.timeout.ms int 30000
initial.broker.registration.timeout.ms int 60000
kafka.metrics.polling.interval.secs int 10
metadata.log.max.record.bytes.between.snapshots long 20971520
metadata.log.max.snapshot.interval.ms long 3600000
metadata.log.segment.bytes int 1073741824
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason=(
            "Of share groups: the assignor is simple, and their states are in a partition like any "
            "other."
        ),
        configs="""
group.share.assignors list simple
share.coordinator.append.linger.ms int -1
share.coordinator.cached.buffer.max.bytes int 1048588
share.coordinator.load.buffer.size int 5242880
share.coordinator.state.topic.compression.codec int 0
share.coordinator.state.topic.min.isr short 2
share.coordinator.state.topic.replication.factor short 3
share.coordinator.state.topic.segment.bytes int 104857600
share.coordinator.threads int 1
share.fetch.purgatory.purge.interval.requests int 1000
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason=(
            "Streams groups (KIP-1071) are not served: clients of Kafka 4.3 use them with "
            "group.protocol=streams alone, and by default the classic protocol."
        ),
        configs="""
group.streams.assignment.interval.ms int 1000
group.streams.heartbeat.interval.ms int 5000
group.streams.initial.rebalance.delay.ms int 3000
group.streams.max.assignment.interval.ms int 15000
group.streams.max.heartbeat.interval.ms int 15000
group.streams.max.session.timeout.ms int 60000
group.streams.max.size int 2147483647
group.streams.max.standby.replicas int 2
group.streams.min.assignment.interval.ms int 0
group.streams.min.heartbeat.interval.ms int 5000
group.streams.min.session.timeout.ms int 45000
group.streams.num.standby.replicas int 0
group.streams.session.timeout.ms int 45000
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason=("Metrics are served for Prometheus, without windows."),
        configs="""
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
quota.window.num int 11
quota.window.size.seconds int 1
""",
    ),
    ConfigGroup(
        effect=Effect.NO_EFFECT,
        reason="A node is one event loop with bounds of its own: it has no such pool or queue.",
        configs="""
background.threads int 10 dynamic
delete.records.purgatory.purge.interval.requests int 1
fetch.purgatory.purge.interval.requests int 1000
group.coordinator.append.linger.ms int -1
group.coordinator.background.threads int 2
group.coordinator.cached.buffer.max.bytes int 1048588
group.coordinator.threads int 4
num.io.threads int 8 dynamic
num.network.threads int 3 dynamic
producer.purgatory.purge.interval.requests int 1000
queued.max.request.bytes long -1
queued.max.requests int 500
request.timeout.ms int 30000
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50
""",
    ),
)


_WITHOUT_DEFAULT = frozenset(
    ("log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms")
)
"""Broker configs that are null unless they are set: topics have the default of their own then, and
of Kafka's broker it is a config in hours that has it.
"""


def _definitions() -> Iterator[ConfigDefinition]:
    for group in (*LOG_CONFIGS, *NODE_CONFIGS):
        yield from group.definitions()
    for config in TOPIC_CONFIGS.values():
        if config.synonym:
            default = None if config.synonym in _WITHOUT_DEFAULT else config.default
            name = config.synonym
            excluded = 0 if name == "log.retention.ms" else config.excluded
            yield replace(
                config, name=name, synonym="", is_dynamic=True, default=default, excluded=excluded
            )


KAFKA_CONFIGS: Mapping[str, ConfigDefinition] = {config.name: config for config in _definitions()}
"""By name. A broker config that is a topic config's default has the definition of that."""
