"""Every setting of a node: one frozen structure, validated once.

A setting has Kafka's name where Kafka has the setting (`message.max.bytes`), else ours.
`setting_sources` has the sources of values.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehead.broker.observability.event_log import LOG_FORMATS
from lakehead.storage.errors import SettingsError
from lakehead.storage.maintenance.configs import BROKER_DEFAULTS, CLEANER_MEMORY
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.wal.block_settings import BlockWalSettings

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _setting(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    least: int | None = None,
    most: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"doc": doc, "unit": unit, "least": least, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values, by field; the name of the setting is the field's with dots for underscores."""

    # where things are
    data: str = _setting(
        "./lakehead-data", "Folder of the embedded object store and write-ahead log."
    )
    store: str = _setting(
        "",
        "Object store: file:/path, s3://bucket/prefix?region=…&endpoint=…, memory:. "
        "Empty: DATA/store.",
    )
    wal: str = _setting(
        "",
        "Write-ahead log: block:/path/of/file/or/disk, block:ebs:SLOT (an EBS volume), object: (in "
        "the object store), object:s3://bucket/prefix, memory:. Empty: DATA/wal.",
    )
    accept_log_loss: str = _setting(
        "",
        "Start without what write-ahead logs that are gone for good hold: NODE:EPOCH, as the "
        "refusal of the start says it; of several nodes by commas. It counts for that one loss.",
    )

    # node and network
    node_id: int = _setting(0, "Id of this broker in the cluster.", least=0)
    broker_rack: str = _setting("", "Rack or zone of this broker.")
    host_id: str = _setting(
        "",
        "Name of the machine, the same for all its nodes: they take over one another's block WAL. "
        "Empty: the machine's own id.",
    )
    nodes: int = _setting(
        1,
        "Nodes on this machine under one supervisor, with ids and ports counted up from node.id "
        "and port; 0: one for each core.",
        least=0,
        most=1000,
    )
    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(9092, "Port to listen on; 0 takes a free one.", least=0, most=65535)
    advertised_host: str = _setting("", "Host in responses to clients. Empty: the one listened on.")
    advertised_port: int = _setting(
        0, "Port in responses to clients. 0: the one listened on.", least=0, most=65535
    )
    extra_listeners: str = _setting(
        "",
        "Further addresses to listen at, NAME://host:port, separated by commas; responses to "
        "clients have those of extra.advertised.listeners. With nodes, ports are counted up.",
    )
    extra_advertised_listeners: str = _setting(
        "",
        "Addresses in responses to clients of extra.listeners, NAME://host:port for each, one "
        "pattern for all nodes: {node.id} and {rack} in the host, {20000+node.id} for the port.",
    )
    metrics_port: int = _setting(
        -1, "Port of the Prometheus metrics page; -1: none, 0: a free one.", least=-1, most=65535
    )
    registry_port: int = _setting(
        -1,
        "Port of a schema registry that is served beside the nodes, by their supervisor (needs the "
        "extra registry); -1: none, 0: a free one.",
        least=-1,
        most=65535,
    )
    max_connections: int = _setting(
        10_000,
        "Maximum open connections; more are closed. Fewer if open files are limited.",
        least=1,
    )
    connections_max_idle_ms: int = _setting(
        600_000, "Time after which idle connections are closed.", unit="ms", least=1
    )
    socket_request_max_bytes: int = _setting(
        100 * MIB,
        "Maximum size of a request; a longer one closes its connection.",
        unit="bytes",
        least=1024,
    )
    socket_send_buffer_bytes: int = _setting(
        102_400, "SO_SNDBUF of connections; -1: the system's.", unit="bytes", least=-1
    )
    socket_receive_buffer_bytes: int = _setting(
        -1, "SO_RCVBUF of connections; -1: the system's.", unit="bytes", least=-1
    )
    write_buffer_bytes: int = _setting(
        4 * MIB, "Unsent bytes from which on a connection is not read.", unit="bytes", least=1
    )
    request_memory_size: int = _setting(
        256 * MIB,
        "Memory for requests that arrive or are looked at, for responses that clients have not "
        "taken, for cold reads for them, and for records that are decompressed. When a part of it "
        "is used up, sockets are not read until there is room.",
        unit="bytes",
        least=8 * MIB,
    )

    shutdown_timeout_ms: int = _setting(
        60_000, "Maximum time that a clean stop waits for the object store.", unit="ms", least=1
    )
    ec2_notices: str = _setting(
        "",
        "On EC2, stop the nodes when the machine is announced to end: interruption (of a spot "
        "instance, two minutes ahead), rebalance (at a recommendation too), or scaling (when its "
        "auto-scaling group ends it, or at an interruption). With each, the nodes lead nothing "
        "while maintenance that EC2 has scheduled is due. Empty: no notices.",
    )

    # cluster
    cluster_id: str = _setting(
        "",
        "Id of the cluster that the store must hold, so that a node with a wrong store does not "
        "start. Empty: any; in an empty store a new cluster begins.",
    )
    broker_heartbeat_interval_ms: int = _setting(
        500, "Interval between heartbeats of nodes.", unit="ms", least=10
    )
    broker_session_timeout_ms: int = _setting(
        3_000,
        "A node that is silent for so long is fenced, and others take over what it led.",
        unit="ms",
        least=100,
    )
    auto_leader_rebalance_enable: bool = _setting(
        True, "Bring partitions back to their preferred leaders, and move some to even out load."
    )
    leader_imbalance_check_interval_seconds: int = _setting(
        5, "Interval between checks of that balance.", unit="seconds", least=1
    )
    leader_imbalance_per_broker_percentage: int = _setting(
        10,
        "Deviation from the average load up to which partitions are not moved, in percent.",
        unit="percent",
        least=1,
        most=1000,
    )

    # topics and messages
    num_partitions: int = _setting(1, "Partitions of a topic created without a number.", least=1)
    auto_create_topics_enable: bool = _setting(
        True, "Create a topic when a client requests metadata of one that does not exist."
    )
    delete_topic_enable: bool = _setting(True, "Allow the deletion of topics.")
    default_replication_factor: int = _setting(
        1, "Shown to clients; storage is shared, so nothing is copied.", least=1
    )
    message_max_bytes: int = _setting(
        1_048_588, "Largest record batch; topics may set max.message.bytes.", unit="bytes", least=0
    )
    log_message_timestamp_type: str = _setting(
        "CreateTime",
        "CreateTime: records keep the producer's timestamps; LogAppendTime: they get the broker's.",
    )
    log_message_timestamp_after_max_ms: int = _setting(
        3_600_000, "Batches with a timestamp further in the future are refused.", unit="ms", least=0
    )
    log_message_timestamp_before_max_ms: int = _setting(
        2**63 - 1, "Batches with a timestamp further in the past are refused.", unit="ms", least=0
    )
    log_retention_ms: int = _setting(
        int(BROKER_DEFAULTS["log.retention.ms"]),
        "Default of retention.ms; -1: unlimited.",
        unit="ms",
        least=-1,
    )
    log_retention_bytes: int = _setting(
        int(BROKER_DEFAULTS["log.retention.bytes"]),
        "Default of retention.bytes; -1: no limit.",
        unit="bytes",
        least=-1,
    )
    log_cleanup_policy: str = _setting(
        BROKER_DEFAULTS["log.cleanup.policy"], "Default of cleanup.policy."
    )
    compression_type: str = _setting(
        "producer",
        "Default of compression.type; producer: batches stay as producers compressed them.",
    )
    producer_id_expiration_ms: int = _setting(
        86_400_000,
        "Time after which the sequence numbers of an idle producer are dropped.",
        unit="ms",
        least=1,
    )
    max_producer_ids_per_partition: int = _setting(
        1_000_000,
        "Producers whose sequence numbers a partition remembers. Beyond it one that has been idle "
        "for long is forgotten for each new one.",
        least=1,
    )

    # fetch
    fetch_max_bytes: int = _setting(
        55 * MIB, "Maximum bytes in one fetch response.", unit="bytes", least=1024
    )
    max_incremental_fetch_session_cache_slots: int = _setting(
        1000, "Maximum fetch sessions in memory.", least=0
    )

    # groups
    group_min_session_timeout_ms: int = _setting(
        6_000, "Shortest session timeout that a member may set.", unit="ms", least=1
    )
    group_max_session_timeout_ms: int = _setting(
        1_800_000, "Longest session timeout that a member may set.", unit="ms", least=1
    )
    group_initial_rebalance_delay_ms: int = _setting(
        0, "Wait for more members before a new group's first rebalance.", unit="ms", least=0
    )
    group_memory_size: int = _setting(
        128 * MIB,
        "Memory for groups and their members, over all groups that a node coordinates. When it is "
        "used up, members that are new get GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        least=MIB,
    )
    group_max_size: int = _setting(2_147_483_647, "Maximum members of a group.", least=1)
    offset_metadata_max_bytes: int = _setting(
        4_096, "Longest metadata string of an offset commit.", unit="bytes", least=0
    )
    offsets_topic_num_partitions: int = _setting(
        50, "Partitions of __consumer_offsets; set before its creation.", least=1
    )
    offsets_retention_minutes: int = _setting(
        10_080, "Time after which offsets of an empty group are deleted.", unit="minutes", least=1
    )
    offsets_retention_check_interval_ms: int = _setting(
        600_000, "Interval between searches for expired offsets.", unit="ms", least=1
    )
    offsets_commit_timeout_ms: int = _setting(
        5_000, "Time limit of an offset commit.", unit="ms", least=1
    )
    transaction_max_timeout_ms: int = _setting(
        900_000, "Longest transaction timeout that a producer may set.", unit="ms", least=1
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000,
        "Time after which an unused transactional id is deleted.",
        unit="ms",
        least=1,
    )
    transaction_state_log_num_partitions: int = _setting(
        50, "Partitions of __transaction_state; set before its creation.", least=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(
        10_000,
        "Interval between aborts of transactions that are open for too long.",
        unit="ms",
        least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting(
        3_600_000, "Interval between searches for expired transactional ids.", unit="ms", least=1
    )

    # tables
    table_roots: str = _setting(
        "",
        "Places to which lakehead.table.path of topics may lead beside tables/: folders, "
        "s3://bucket or s3://bucket/prefix, separated by commas; *: anywhere. Jobs write and "
        "delete there with their own rights, and any client may set configs.",
    )
    table_registries: str = _setting(
        "",
        "Schema registries that lakehead.table.schema.registry.url may name, beside the one that "
        "registry.port serves: URLs (a path under one is allowed too), separated by commas; *: "
        "any. Jobs send requests there.",
    )

    # storage
    wal_size: int = _setting(
        1 * GIB,
        "Size of a new write-ahead log; a `size` in the address of `wal` goes before it.",
        unit="bytes",
        least=64 * MIB,
    )
    wal_pending_size: int = _setting(
        64 * MIB,
        "Bytes in flight to the write-ahead log from which on producers wait.",
        unit="bytes",
        least=1 * MIB,
    )
    wal_device_timeout_ms: int = _setting(
        5_000,
        "A write, read or flush of a block write-ahead log that takes longer (large ones: a second "
        "for each 10 MB more) ends the node, and others take over: its device is stuck.",
        unit="ms",
        least=100,
    )
    upload_size: int = _setting(
        256 * MIB,
        "Size of waiting data that starts an upload to the object store.",
        unit="bytes",
        least=1 * MIB,
    )
    upload_age_ms: int = _setting(
        10_000, "Maximum age of data before its upload.", unit="ms", least=1
    )
    upload_max_in_flight: int = _setting(3, "Maximum uploads in flight.", least=1)
    upload_object_size: int = _setting(
        64 * MIB, "Maximum object size.", unit="bytes", least=1 * MIB
    )
    upload_stream_object_size: int = _setting(
        8 * MIB,
        "Size in an upload from which on a partition gets objects of its own.",
        unit="bytes",
        least=1 * MIB,
    )
    cache_size: int = _setting(
        512 * MIB,
        "Memory for recent data, which consumers at the tail read.",
        unit="bytes",
        least=8 * MIB,
    )
    block_cache_size: int = _setting(
        128 * MIB,
        "Memory for data read back from the object store, and read ahead.",
        unit="bytes",
        least=1 * MIB,
    )
    index_cache_size: int = _setting(
        32 * MIB, "Memory for the indexes of objects.", unit="bytes", least=1 * MIB
    )
    cold_read_size: int = _setting(
        64 * MIB,
        "Maximum bytes in flight from the object store to readers.",
        unit="bytes",
        least=1 * MIB,
    )
    metadata_poll_ms: int = _setting(
        1_000,
        "Interval between reads of the metadata log while it grows.",
        unit="ms",
        least=10,
    )
    metadata_poll_max_ms: int = _setting(
        5_000,
        "Longest interval between reads of the metadata log while it is idle.",
        unit="ms",
        least=10,
    )
    metadata_checkpoint_entries: int = _setting(
        1_000,
        "A checkpoint of the metadata is written after this number of entries of its log, and what "
        "lies before the one before is deleted.",
        least=10,
    )

    garbage_grace_ms: int = _setting(
        600_000,
        "An object stays this long after nothing refers to it any more: readers of an older view "
        "finish.",
        unit="ms",
        least=0,
    )
    garbage_interval_ms: int = _setting(
        60_000,
        "Interval between searches for such objects; a search needs no request.",
        unit="ms",
        least=10,
    )
    garbage_sweep_ms: int = _setting(
        21_600_000,
        "Interval between listings of the object store for what crashes left.",
        unit="ms",
        least=1_000,
    )

    # maintenance
    maintain: bool = _setting(
        True, "Run maintenance from `lakehead start`, in a process of its own."
    )
    maintain_tables: bool = _setting(
        True,
        "Have `lakehead start` keep the tables that topics declare, in a process of its own (half "
        "a gigabyte of memory), where the packages of the lake are installed. Set it to false "
        "where other machines keep them.",
    )
    maintenance_interval_ms: int = _setting(
        2_000, "Interval between maintenance checks.", unit="ms", least=10
    )
    log_retention_check_interval_ms: int = _setting(
        300_000, "Interval between checks of retention.", unit="ms", least=1
    )
    log_cleaner_dedupe_buffer_size: int = _setting(
        int(BROKER_DEFAULTS[CLEANER_MEMORY]),
        "Memory of log compaction, for the keys of one pass over a partition.",
        unit="bytes",
        least=1 * MIB,
    )

    # words
    log_level: str = _setting(
        "info",
        "Minimum level of logged events: debug, info, warning or error.",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _setting(
        LOG_FORMATS[0],
        "Format of log lines: logfmt (key=value), or json (an object for each line).",
        choices=LOG_FORMATS,
    )

    @property
    def store_uri(self) -> str:
        """The object store's URI, with the default filled in."""
        return self.store or f"file:{Path(self.data).absolute()}/store"

    @property
    def wal_uri(self) -> str:
        """The write-ahead log's URI, with the defaults of place and size filled in."""
        uri = self.wal or f"block:{Path(self.data).absolute()}/wal"
        place, _, query = uri.partition("?")
        options = [option for option in query.split("&") if option]
        if not any(option.startswith("size=") for option in options):
            options.append(f"size={self.wal_size}")
        return f"{place}?{'&'.join(options)}"

    @property
    def accepted_log_epoch(self) -> int:
        """The epoch of this node whose log may be lost; -1: none. Raises SettingsError."""
        accepted = -1
        for part in filter(None, self.accept_log_loss.split(",")):
            node, _, epoch = part.strip().partition(":")
            if not (node.isdecimal() and epoch.isdecimal()):
                raise SettingsError(
                    f"accept.log.loss: {part!r} is not NODE:EPOCH, like 0:7: copy it from the line "
                    "that refused to start the node"
                )
            if int(node) == self.node_id:
                accepted = int(epoch)
        return accepted

    @property
    def block_wal(self) -> BlockWalSettings:
        """Settings of a block write-ahead log."""
        return BlockWalSettings(device_timeout_s=self.wal_device_timeout_ms / 1000)

    @property
    def engine(self) -> StorageSettings:
        """Settings of the storage engine."""
        return StorageSettings(
            upload_size=self.upload_size,
            upload_age_s=self.upload_age_ms / 1000,
            uploads_max=self.upload_max_in_flight,
            stream_object_size=self.upload_stream_object_size,
            object_size_max=self.upload_object_size,
            cache_size=self.cache_size,
            block_cache_size=self.block_cache_size,
            index_cache_size=self.index_cache_size,
            cold_read_max=self.cold_read_size,
            search_memory_max=self.request_memory_size // 8,
            wal_pending_max=self.wal_pending_size,
            metadata_poll_s=self.metadata_poll_ms / 1000,
            metadata_poll_max_s=self.metadata_poll_max_ms / 1000,
            metadata_checkpoint_entries=self.metadata_checkpoint_entries,
            garbage_grace_s=self.garbage_grace_ms / 1000,
            garbage_interval_s=self.garbage_interval_ms / 1000,
            garbage_sweep_s=self.garbage_sweep_ms / 1000,
        )
