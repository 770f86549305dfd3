"""Kafka 4.2's configs of brokers that are about topics, logs and coordinators; topics' defaults are
in `topic_table`.
"""

from lakehead.broker.configs.definition import Effect
from lakehead.broker.configs.table import Group

LOG_CONFIGS = (
    Group(
        effect=Effect.HONOURED,
        reason="",
        configs="""
auto.create.topics.enable boolean true
auto.leader.rebalance.enable boolean true
broker.heartbeat.interval.ms int 2000
broker.rack string -
broker.session.timeout.ms int 9000
compression.type string producer dynamic
connections.max.idle.ms long 600000
default.replication.factor int 1
delete.topic.enable boolean true
fetch.max.bytes int 57671680
group.initial.rebalance.delay.ms int 3000
group.max.session.timeout.ms int 1800000
group.max.size int 2147483647
group.min.session.timeout.ms int 6000
leader.imbalance.check.interval.seconds long 300
log.cleanup.policy list delete dynamic
log.message.timestamp.after.max.ms long 3600000 dynamic
log.message.timestamp.before.max.ms long 9223372036854775807 dynamic
log.message.timestamp.type string CreateTime dynamic
log.retention.bytes long -1 dynamic
log.retention.ms long - dynamic
max.connections int 2147483647 dynamic
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
socket.receive.buffer.bytes int 102400
socket.request.max.bytes int 104857600
socket.send.buffer.bytes int 102400
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
transaction.max.timeout.ms int 900000
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
transaction.state.log.num.partitions int 50
transactional.id.expiration.ms int 604800000
""",
    ),
    Group(
        effect=Effect.HONOURED,
        reason="Read where log.retention.ms is not given.",
        configs="""
log.retention.hours int 168
log.retention.minutes int -
""",
    ),
    Group(
        effect=Effect.NO_EFFECT,
        reason="Storage is shared: nothing is replicated.",
        configs="""
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
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
    Group(
        effect=Effect.NO_EFFECT,
        reason="A partition is no folder of files: it is a stream of objects.",
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
    Group(
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
    Group(
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
    Group(
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
