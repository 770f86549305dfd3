"""The page about compatibility with Kafka: its configs, and the intended differences."""

from collections.abc import Iterator

from lakehead.broker.configs.definition import ConfigDefinition, Effect
from lakehead.broker.configs.entries import BROKER_CONFIGS
from lakehead.broker.configs.group_configs import GROUP_CONFIGS
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS
from lakehead.broker.configs.topic_configs import (
    DECLARED_TABLE_CONFIGS,
    KAFKA_TOPIC_CONFIGS,
    LAKEHEAD_TOPIC_CONFIGS,
)

_INTRODUCTION = """\
# Compatibility with Kafka

Lakehead speaks the protocol of Apache Kafka 4.3. This page lists the intended differences, and
the effect of each of Kafka's configs.

A config is *honoured*, *no effect* or *refused*. An honoured config works as in Kafka. A config
without effect is taken, kept and shown, so that tools and files for Kafka work, and changes
nothing, because its subject does not exist here. A refused config has its reason: its user would
rely on something that is not true here."""

_DIFFERENCES = """\
## Different on purpose

- **Replicas**: storage is shared, so nothing is copied. A replication factor of 1 to 3 is taken
  with any number of brokers; topics show one replica for each partition, or their assigned ones.
  `min.insync.replicas` has nothing to count: `acks=1` and `acks=all` promise the same.
- **Compression**: `compression.type` is obeyed: batches in another codec are compressed again.
  That costs a node time, so leave it at `producer` if it does not matter. The level of lz4 has no
  effect. Records that cannot be read are refused with INVALID_RECORD.
- **Checks of records**: a broker checks the headers of batches, not records. Limits of
  timestamps (`message.timestamp.before.max.ms` and `after.max.ms`) hold for the first record of a
  batch and for its newest timestamp. For compacted topics it checks that each record has a key.
  For topics that set `lakehead.record.validation=true` it checks all of each record, as Kafka
  always does: that it can be read, its offset, and its own timestamp; INVALID_RECORD or
  INVALID_TIMESTAMP name the records. It is off by default since it costs a node about 3
  microseconds of a processor for each record, and decompression; header checks do not depend on
  the number of records. It is done off the event loop, and batches keep their order.
  In both cases a batch may inflate to 16 times `max.message.bytes` and 64 MiB at most, more is
  refused with INVALID_RECORD. Without it a batch that no reader can read is taken:
  [scans](scan.md#records-that-cannot-be-read), [tables](tables.md) and [`verify`](jobs.md#verify)
  report it.
- **Sizes of requests**: one request may have 20,000 array elements and tagged fields in all and
  four more for each partition of the cluster, and its header 100 tagged fields; one that carries
  no records may have 16 MiB. A larger request closes the connection: the announced size decides,
  and the request is not read. APIs that are handled or begun in one turn of the event loop
  (Produce, Fetch, OffsetCommit, TxnOffsetCommit, OffsetDelete, ConsumerGroupHeartbeat,
  AddPartitionsToTxn, LeaveGroup, SyncGroup, CreatePartitions, ElectLeaders, AlterConfigs,
  IncrementalAlterConfigs, AlterPartitionReassignments, DescribeQuorum, those of quotas and SCRAM)
  take 2,000 and two for each partition: a consumer that owns every partition still commits them
  all at once. CreateTopics and CreatePartitions make 10,000 partitions in one request at most
  (POLICY_VIOLATION). A group that one OffsetFetch names twice gets INVALID_REQUEST.
- **Fetch sessions** of a node have 250,000 partitions in all; further consumers are served without
  one, as when `max.incremental.fetch.session.cache.slots` is reached.
- **Timeouts of changes**: while the object store takes no puts, a request that changes the metadata
  gets REQUEST_TIMED_OUT by its own timeout, and after 60 s at most: so do those without one, and
  those with a timeout of 0 or below. All of the change is made later, or nothing. Kafka refuses
  some requests with a timeout of 0. A Metadata request that creates topics waits 10 s for them,
  and has LEADER_NOT_AVAILABLE for those that are not there then. After 20 s InitProducerId gets
  COORDINATOR_LOAD_IN_PROGRESS, and FindCoordinator COORDINATOR_NOT_AVAILABLE if it has to make the
  internal topic: clients send both again.
- **Sizes of groups**: the record of a group, with the metadata and assignments of its members, may
  have `message.max.bytes`, as in Kafka; SyncGroup of a larger one gets UNKNOWN_SERVER_ERROR.
  Members whose metadata (of all their protocols) come to more than twice that are refused with
  GROUP_MAX_SIZE_REACHED when they join, and the others continue. A group keeps one mebibyte, about
  7,000, of member ids that are given out and not used; the oldest are dropped (UNKNOWN_MEMBER_ID).
- **Internal topics keep their number of partitions**: CreatePartitions of `__consumer_offsets`,
  `__transaction_state` or `__share_group_state` gets INVALID_REQUEST. Kafka adds them, and from the
  next start of its brokers on groups are looked for in other partitions than those of their offsets
  (KAFKA-14418).
- **EndTxn** of a fenced producer is refused with PRODUCER_FENCED whichever clients use its
  transactional id. In Kafka a producer of transaction version 2 becomes its successor if that is of
  an older version and has ended a transaction: both then write under one epoch.
- **WriteTxnMarkers** from a client that is not a node may abort a transaction, by a coordinator
  epoch that the partition knows, as `kafka-transactions abort` does. A marker that commits, or an
  epoch that would fence the coordinator, gets CLUSTER_AUTHORIZATION_FAILED; Kafka without ACLs
  takes both.
- **Access rules** ([authorisation](authorization.md)) are Kafka's. Their hosts may be networks in
  CIDR notation, as in Kafka 4.3 (KIP-1276). Addresses are compared, not their spellings: `::1` is
  `0:0:0:0:0:0:0:1`. A node of the cluster needs no rule, since it proves that it is a node. A
  principal with CLUSTER_ACTION may not write each marker of a transaction (see WriteTxnMarkers),
  and its Fetch requests need READ of each topic: brokers copy nothing from each other.
- **There is no active segment.** Kafka never compacts the segment that a partition writes to; here
  the newest records of a compacted topic may be compacted as soon as they are in objects. If
  consumers have to see each value for a time, set `min.compaction.lag.ms`.
- **Names that differ only in `.` and `_`**: `a.b` is refused if `a_b` exists, with
  INVALID_TOPIC_EXCEPTION, as in Kafka, also if a client's Metadata request would create it.
- **Tiered storage**: `remote.storage.enable=true` is refused, as by a Kafka broker whose tiered
  storage is off.
- **LogAppendTime** does not go back within a topic when a node's clock does.
- **The metadata quorum** that `kafka-metadata-quorum` shows is the metadata log in the object
  store: its leader is the controller, its offsets are numbers of entries, its voters the live
  nodes.
- **Configs of brokers** can be set while they run, for one broker or for all, if the tables
  below list them so. Names that Kafka does not know are refused; Kafka keeps them. Configs that
  Kafka's brokers read only at their start are refused here too, with Kafka's error: give them by
  flag, environment or file ([settings](settings.md)).
- **Loggers**: a node has one, `root`. `kafka-configs --entity-type broker-loggers` sets its level
  until the process ends.
- **Reads in the consumer's zone** (KIP-392): `replica.selector.class` may be Kafka's
  RackAwareReplicaSelector, or empty. The chosen node is no follower: it reads objects
  ([zones](zones.md)), and the records beyond them from the leader. Metadata then names one replica
  in each rack, and DescribeTopicPartitions, which tools use, the replicas without them.
- **Client metrics** (KIP-714) are taken without a plugin ([client metrics](client-metrics.md)).
  Patterns of `match` are regular expressions without references and lookaround; attributes of
  clients beyond 256 characters match none. A push that inflates beyond `telemetry.max.bytes`, or
  has more than 50,000 elements, is refused; Kafka leaves both to its plugin.
- **Unregistering a broker** (`kafka-cluster unregister`) removes one that has stopped; its id may
  come back later. A live one is refused, where Kafka would remove it too. Be sure that its process
  has ended and is not only cut off: the id of a removed broker is not fenced any more.
- **Features** (`kafka-features`): `metadata.version` has levels of its own, not Kafka's. It is
  raised by `upgrade --feature metadata.version=N` or `lakehead features upgrade` and never lowered;
  `--metadata` and `--release-version` name Kafka's releases and are refused. `transaction.version`,
  `group.version` and `share.version` stay at the level of the release. `share.version` is 2, as in
  Kafka 4.4: share groups have dead letters (KIP-1191).
- **Log directories**: there is one, the cluster's place in the object store. So
  `cordoned.log.dirs` (KIP-1066) cordons [a node as a whole](cluster.md#cordoned-nodes), and is set
  while it runs, not in a file. What a dead node led goes to nodes that are not cordoned.
- **SASL**: GSSAPI is not served. An unknown user of SCRAM fails at the last message, like one with
  a wrong password, where Kafka fails at the first. SCRAM checks the channel binding of the final
  message, takes user names outside of ASCII, and refuses the extension `m=`. OAUTHBEARER takes
  unsecured tokens only if that is set; without a key set and without `sts.cluster` a node does not
  start. Nodes authenticate to each other by the secret of the cluster, not by a user
  ([authentication](authentication.md)).
- **Quotas** throttle as in Kafka ([quotas](quotas.md)). Different: 100 percent of request time is
  one event loop; a batch that is longer than the whole window allows is sent in the end; requests
  that only validate take no controller mutations.
- **Settings** such as `delete.topic.enable` are those of the responding node: give all nodes
  the same. A settings file may hold Kafka's settings that have no effect; `lakehead start` names
  them.
"""


def compatibility_page() -> str:
    """Return the page."""
    sections = [
        _INTRODUCTION,
        _DIFFERENCES.rstrip(),
        "\n".join(_topics()),
        "\n".join(_tables()),
        "\n".join(_groups()),
        "\n".join(_brokers()),
    ]
    return "\n\n".join(sections) + "\n"


def _topics() -> Iterator[str]:
    yield "## Configs of topics\n"
    yield "| Config | Default | Effect | Meaning |"
    yield "| --- | --- | --- | --- |"
    for config in (*KAFKA_TOPIC_CONFIGS.values(), *LAKEHEAD_TOPIC_CONFIGS.values()):
        yield _row(config, config.effect.value)


def _tables() -> Iterator[str]:
    yield "## Configs of tables\n"
    yield (
        "Kafka does not have these configs of topics: they declare [the table](tables.md) of "
        "a topic. Kafka's own tools set and show them.\n"
    )
    yield "| Config | Default | Values | Meaning |"
    yield "| --- | --- | --- | --- |"
    for config in DECLARED_TABLE_CONFIGS.values():
        yield _row(config, ", ".join(config.choices or ()) or config.kind.name.lower())


def _groups() -> Iterator[str]:
    yield "## Configs of groups\n"
    yield "| Config | Default | Effect | Meaning |"
    yield "| --- | --- | --- | --- |"
    for config in GROUP_CONFIGS.values():
        yield _row(config, config.effect.value)


def _brokers() -> Iterator[str]:
    yield "## Configs of brokers\n"
    yield (
        "Those that Kafka documents; [all settings of a node](settings.md) have a page of their "
        "own. *While running*: can be set with `kafka-configs` while brokers run."
    )
    found = [BROKER_CONFIGS[name] for name in sorted(KAFKA_CONFIGS)]
    for effect in Effect:
        yield f"\n### {effect.value.capitalize()}\n"
        yield "| Config | Default | While running | Meaning |"
        yield "| --- | --- | --- | --- |"
        for config in found:
            if config.effect is effect:
                is_dynamic = config.is_dynamic and effect is not Effect.REFUSED
                yield _row(config, "yes" if is_dynamic else "")


def _row(config: ConfigDefinition, third: str) -> str:
    default = f"`{config.default}`" if config.default else ""
    return f"| `{config.name}` | {default} | {third} | {config.note} |"
