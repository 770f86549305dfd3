"""Kafka 4.2's configs of brokers that are about the node: places, network, security, threads, and
groups of kinds that are not served.
"""

from lakehead.broker.configs.definition import Effect
from lakehead.broker.configs.table import Group

NODE_CONFIGS = (
    Group(
        effect=Effect.REFUSED,
        reason=(
            "Said with data, store, wal, node.id, host, port, advertised.host and advertised.port."
        ),
        configs="""
advertised.listeners list -
broker.id int -1
early.start.listeners list -
inter.broker.listener.name string -
listener.security.protocol.map string PLAINTEXT:PLAINTEXT dynamic
listeners list PLAINTEXT://:9092 dynamic
log.dir list /tmp/kafka-logs
log.dirs list -
metadata.log.dir string -
process.roles list ""
""",
    ),
    Group(
        effect=Effect.REFUSED,
        reason="Names of Java classes: this broker can load none.",
        configs="""
alter.config.policy.class.name class -
config.providers list "" dynamic
create.topic.policy.class.name class -
kafka.metrics.reporters list ""
metric.reporters list - dynamic
replica.selector.class string -
security.providers string -
""",
    ),
    Group(
        effect=Effect.REFUSED,
        reason="TLS, SASL and access rules are not served yet, so do not rely on them.",
        configs="""
authorizer.class.name string ""
client.quota.callback.class class -
connections.max.reauth.ms long 0
delegation.token.secret.key password -
principal.builder.class class - dynamic
sasl.client.callback.handler.class class -
sasl.enabled.mechanisms list GSSAPI dynamic
sasl.jaas.config password - dynamic
sasl.kerberos.service.name string - dynamic
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.mechanism.inter.broker.protocol string GSSAPI dynamic
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.client.credentials.client.secret password -
sasl.oauthbearer.jwt.retriever.class class -
sasl.oauthbearer.jwt.validator.class class -
sasl.server.callback.handler.class class -
security.inter.broker.protocol string PLAINTEXT
ssl.client.auth string none dynamic
ssl.engine.factory.class class - dynamic
ssl.key.password password - dynamic
ssl.keystore.certificate.chain password - dynamic
ssl.keystore.key password - dynamic
ssl.keystore.location string - dynamic
ssl.keystore.password password - dynamic
ssl.principal.mapping.rules string DEFAULT
ssl.truststore.certificates password - dynamic
ssl.truststore.location string - dynamic
ssl.truststore.password password - dynamic
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason="TLS, SASL and delegation tokens are not served yet.",
        configs="""
connection.failed.authentication.delay.ms int 100
delegation.token.expiry.check.interval.ms long 3600000
delegation.token.expiry.time.ms long 86400000
delegation.token.max.lifetime.ms long 604800000
sasl.kerberos.kinit.cmd string /usr/bin/kinit dynamic
sasl.kerberos.min.time.before.relogin long 60000 dynamic
sasl.kerberos.principal.to.local.rules list DEFAULT dynamic
sasl.kerberos.ticket.renew.jitter double 0.05 dynamic
sasl.kerberos.ticket.renew.window.factor double 0.8 dynamic
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
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
sasl.oauthbearer.clock.skew.seconds int 30
sasl.oauthbearer.expected.audience list ""
sasl.oauthbearer.expected.issuer string -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
sasl.oauthbearer.jwks.endpoint.url string -
sasl.oauthbearer.scope string -
sasl.oauthbearer.scope.claim.name string scope
sasl.oauthbearer.sub.claim.name string sub
sasl.oauthbearer.token.endpoint.url string -
sasl.server.max.receive.size int 524288
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.cipher.suites list "" dynamic
ssl.enabled.protocols list TLSv1.2,TLSv1.3 dynamic
ssl.endpoint.identification.algorithm string https dynamic
ssl.keymanager.algorithm string SunX509 dynamic
ssl.keystore.type string JKS dynamic
ssl.protocol string TLSv1.3 dynamic
ssl.provider string - dynamic
ssl.secure.random.implementation string - dynamic
ssl.trustmanager.algorithm string PKIX dynamic
ssl.truststore.type string JKS dynamic
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason="There is no quorum: metadata is a log in the object store.",
        configs="""
controller.listener.names list ""
controller.quorum.append.linger.ms int 25
controller.quorum.auto.join.enable boolean false
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
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
    Group(
        effect=Effect.NO_EFFECT,
        reason="The groups that this is about are not served yet.",
        configs="""
group.consumer.assignors list uniform,range
group.consumer.heartbeat.interval.ms int 5000
group.consumer.max.heartbeat.interval.ms int 15000
group.consumer.max.session.timeout.ms int 60000
group.consumer.max.size int 2147483647
group.consumer.migration.policy string bidirectional
group.consumer.min.heartbeat.interval.ms int 5000
group.consumer.min.session.timeout.ms int 45000
group.consumer.session.timeout.ms int 45000
group.share.assignors list simple
group.share.delivery.count.limit int 5
group.share.heartbeat.interval.ms int 5000
group.share.max.heartbeat.interval.ms int 15000
group.share.max.record.lock.duration.ms int 60000
group.share.max.session.timeout.ms int 60000
group.share.max.share.sessions int 2000
group.share.max.size int 200
group.share.min.heartbeat.interval.ms int 5000
group.share.min.record.lock.duration.ms int 15000
group.share.min.session.timeout.ms int 45000
group.share.partition.max.record.locks int 2000
group.share.record.lock.duration.ms int 30000
group.share.session.timeout.ms int 45000
group.streams.heartbeat.interval.ms int 5000
group.streams.initial.rebalance.delay.ms int 3000
group.streams.max.heartbeat.interval.ms int 15000
group.streams.max.session.timeout.ms int 60000
group.streams.max.size int 2147483647
group.streams.max.standby.replicas int 2
group.streams.min.heartbeat.interval.ms int 5000
group.streams.min.session.timeout.ms int 45000
group.streams.num.standby.replicas int 0
group.streams.session.timeout.ms int 45000
share.coordinator.append.linger.ms int -1
share.coordinator.load.buffer.size int 5242880
share.coordinator.snapshot.update.records.per.snapshot int 500
share.coordinator.state.topic.compression.codec int 0
share.coordinator.state.topic.min.isr short 2
share.coordinator.state.topic.num.partitions int 50
share.coordinator.state.topic.replication.factor short 3
share.coordinator.state.topic.segment.bytes int 104857600
share.coordinator.threads int 1
share.coordinator.write.timeout.ms int 5000
share.fetch.purgatory.purge.interval.requests int 1000
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason=("Metrics are served for Prometheus, without windows; quotas are not enforced yet."),
        configs="""
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
quota.window.num int 11
quota.window.size.seconds int 1
telemetry.max.bytes int 1048576
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason="Not enforced yet, as no quota is: max.connections alone limits connections.",
        configs="""
max.connection.creation.rate int 2147483647 dynamic
max.connections.per.ip int 2147483647 dynamic
max.connections.per.ip.overrides string "" dynamic
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason="A node is one event loop with bounds of its own: it has no such pool or queue.",
        configs="""
background.threads int 10 dynamic
delete.records.purgatory.purge.interval.requests int 1
fetch.purgatory.purge.interval.requests int 1000
group.coordinator.append.linger.ms int -1
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
