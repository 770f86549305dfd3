"""Every setting of a node: one frozen structure, validated once.

A setting has Kafka's name where Kafka has the setting (`message.max.bytes`), else ours.
`setting_sources` has the sources of values.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immutables import Map

from lakehead.broker.observability.event_log import LOG_FORMATS
from lakehead.storage.encryption.settings import (
    KEY_FILE,
    KMS_KEY,
    PROVIDER,
    PROVIDERS,
    REQUIRED,
    EncryptionSettings,
    joined_address,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.maintenance.configs import BROKER_DEFAULTS, CLEANER_MEMORY
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.wal.block_settings import BlockWalSettings

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The value of `replica.selector.class` by which consumers read in their zone."""
OVERRIDE_PREFIX = "listener.name."
"""Of settings of a single listener: `listener.name.<name>.<setting>`."""


def _setting(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    least: int | None = None,
    most: int | None = None,
    choices: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    metadata = {
        "doc": doc,
        "unit": unit,
        "least": least,
        "most": most,
        "choices": choices,
        "is_secret": is_secret,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not is_secret)


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
    standby: bool = _setting(
        False,
        "Serve a copy of a cluster to readers, and write nothing: store is the target of "
        "`lakehead backup --follow`, or a prefix that S3 replicates. When the backups are made a "
        "cluster by `lakehead restore --in-place`, the node becomes a full one.",
    )
    accept_log_loss: str = _setting(
        "",
        "Start without what write-ahead logs that are gone for good hold: NODE:EPOCH, as the "
        "refusal of the start says it; of several nodes by commas. It counts for that one loss.",
    )

    # encryption at rest
    encryption_key_provider: str = _setting(
        "none",
        "Provider of the key that wraps data keys: this node encrypts the objects and the "
        "write-ahead log that it writes. none: it does not, and still reads by the keys below.",
        choices=PROVIDERS,
    )
    encryption_key_file: str = _setting(
        "",
        "File with wrapping keys, made by `lakehead encryption-key`: the first encrypts, the "
        "others decrypt. It is read again for each new data key.",
    )
    encryption_kms_key: str = _setting(
        "", "Id, ARN or alias of the wrapping key in AWS KMS, with encryption.key.provider=kms."
    )
    encryption_required: bool = _setting(
        False,
        "Refuse plain data: objects with records, metadata and records of a write-ahead log that "
        "are not encrypted. For clusters that have none any more (`lakehead inspect keys`).",
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
    listeners: str = _setting(
        "",
        "Addresses to listen at, NAME://host:port, separated by commas: in place of host and port, "
        "which are one listener PLAINTEXT. With nodes, ports are counted up.",
    )
    advertised_listeners: str = _setting(
        "",
        "Addresses in responses to clients, NAME://host:port, of those listeners that clients get. "
        "They may be one pattern for all nodes: {node.id} and {rack} in the host, {20000+node.id} "
        "for the port. Empty: advertised.host, or the host listened on, with the port listened on.",
    )
    listener_security_protocol_map: str = _setting(
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Security protocol of each listener, NAME:PROTOCOL, separated by commas.",
    )
    inter_broker_listener_name: str = _setting(
        "",
        "Listener that nodes use between each other: PLAINTEXT, or SSL with certificates on both "
        "sides. Empty: PLAINTEXT if there is one, else the first SSL.",
    )
    security_inter_broker_protocol: str = _setting(
        "", "The same by protocol, of the listener with that name. Set one of the two."
    )
    extra_listeners: str = _setting(
        "",
        "Listeners beside those of listeners, or of host and port. PLAINTEXT unless "
        "listener.security.protocol.map has them.",
    )
    extra_advertised_listeners: str = _setting(
        "", "Addresses in responses to clients of extra.listeners, one for each of them."
    )
    ssl_keystore_type: str = _setting(
        "PEM", "Format of the key and its certificate: PEM or PKCS12."
    )
    ssl_keystore_location: str = _setting(
        "",
        "File with the private key and the chain of its certificate, of listeners with SSL. A "
        "change of the file counts within seconds, for new connections.",
    )
    ssl_keystore_password: str = _setting("", "Password of a PKCS12 keystore.", is_secret=True)
    ssl_keystore_key: str = _setting(
        "", "The private key as PEM text, in place of a file.", is_secret=True
    )
    ssl_keystore_certificate_chain: str = _setting(
        "", "The certificates of ssl.keystore.key as PEM text.", is_secret=True
    )
    ssl_key_password: str = _setting(
        "", "Password of the private key, if it is encrypted.", is_secret=True
    )
    ssl_truststore_type: str = _setting(
        "PEM", "Format of the certificates of trusted authorities: PEM or PKCS12."
    )
    ssl_truststore_location: str = _setting(
        "",
        "File with the certificates of authorities whose certificates clients and nodes may show. "
        "Empty: those of the system.",
    )
    ssl_truststore_password: str = _setting("", "Password of a PKCS12 truststore.", is_secret=True)
    ssl_truststore_certificates: str = _setting(
        "", "The same certificates as PEM text, in place of a file.", is_secret=True
    )
    ssl_client_auth: str = _setting(
        "none",
        "Certificates of clients: required, requested (a client without one is let in), or none. "
        "Nodes always show theirs to each other.",
        choices=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = _setting(
        "DEFAULT",
        "Names of clients from the subjects of their certificates: rules by Kafka's grammar, "
        "RULE:pattern/replacement/[LU], separated by commas; DEFAULT: the whole subject.",
    )
    ssl_enabled_protocols: str = _setting(
        "TLSv1.2,TLSv1.3", "Versions of TLS, separated by commas: TLSv1.2, TLSv1.3."
    )
    ssl_cipher_suites: str = _setting(
        "", "Cipher suites by their standard names, separated by commas. Empty: OpenSSL's choice."
    )
    ssl_endpoint_identification_algorithm: str = _setting(
        "https",
        "Check that a node's certificate has the name of its address: https; empty: no check.",
        choices=("https", ""),
    )
    ssl_handshake_timeout_ms: int = _setting(
        10_000, "Time limit of a TLS handshake.", unit="ms", least=100
    )
    ssl_handshakes_max: int = _setting(
        256,
        "Maximum TLS handshakes at the same time. Beyond it the oldest is closed.",
        least=1,
    )
    sasl_enabled_mechanisms: str = _setting(
        "",
        "Mechanisms of listeners with SASL, separated by commas: SCRAM-SHA-256, SCRAM-SHA-512, "
        "PLAIN, OAUTHBEARER.",
    )
    sasl_jaas_config: str = _setting(
        "",
        "Users of PLAIN, with PlainLoginModule, and options of OAUTHBEARER, by Kafka's grammar. It "
        "is set for a listener and a mechanism: listener.name.NAME.plain.sasl.jaas.config.",
        is_secret=True,
    )
    sasl_mechanism_inter_broker_protocol: str = _setting(
        "SCRAM-SHA-512",
        "Mechanism by which nodes authenticate to each other if their listener has SASL. Their "
        "password follows from the secret of the cluster.",
        choices=("scram-sha-256", "scram-sha-512"),
    )
    connections_max_reauth_ms: int = _setting(
        0,
        "Time after which a client has to authenticate again on its connection; 0: never. The "
        "connection of one that does not is closed.",
        unit="ms",
        least=0,
    )
    connection_failed_authentication_delay_ms: int = _setting(
        100,
        "Delay of the response to a client that cannot authenticate, before it is disconnected.",
        unit="ms",
        least=0,
        most=30_000,
    )
    sasl_server_max_receive_size: int = _setting(
        524_288, "Maximum size of a request before authentication.", unit="bytes", least=1024
    )
    sasl_server_callback_handler_class: str = _setting(
        "",
        "For OAUTHBEARER, Kafka's OAuthBearerUnsecuredValidatorCallbackHandler with its package "
        "accepts tokens without a signature, for tests. Empty: tokens are checked.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = _setting(
        "", "URL of the public keys (JWK set) of the issuer of OAUTHBEARER tokens."
    )
    sasl_oauthbearer_expected_issuer: str = _setting(
        "", "The issuer that tokens must have (iss). Empty: any that the keys are of."
    )
    sasl_oauthbearer_expected_audience: str = _setting(
        "", "Audiences, of which tokens must have one (aud), separated by commas. Empty: any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        30, "Allowed difference to the clock of the issuer.", unit="seconds", least=0
    )
    sasl_oauthbearer_scope_claim_name: str = _setting("scope", "Claim with the scopes of a token.")
    sasl_oauthbearer_sub_claim_name: str = _setting(
        "sub", "Claim with the name of the principal of a token."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _setting(
        3_600_000, "Interval between fetches of the keys.", unit="ms", least=1_000
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = _setting(
        100, "Wait after a fetch of the keys that failed, doubled each time.", unit="ms", least=1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = _setting(
        10_000, "Longest wait after a fetch of the keys that failed.", unit="ms", least=1
    )
    sasl_login_connect_timeout_ms: int = _setting(
        10_000, "Time limit of a connection to an issuer of tokens.", unit="ms", least=1
    )
    sasl_login_read_timeout_ms: int = _setting(
        10_000, "Time limit of a response of an issuer of tokens.", unit="ms", least=1
    )
    sts_cluster: str = _setting(
        "",
        "Name of this cluster in presigned requests to AWS STS, by which AWS roles log in as "
        "OAUTHBEARER clients. Empty: such tokens are refused.",
    )
    sts_accounts: str = _setting(
        "", "AWS accounts whose roles and users may log in, separated by commas."
    )
    sts_regions: str = _setting("", "AWS regions whose STS may check tokens, separated by commas.")
    sts_endpoint: str = _setting(
        "",
        "URL to which requests to AWS STS are sent, such as that of a VPC endpoint. Empty: the "
        "host that the token names.",
    )
    delegation_token_secret_key: str = _setting(
        "",
        "Key from which delegation tokens are made, the same for all nodes. Empty: there are no "
        "delegation tokens.",
        is_secret=True,
    )
    delegation_token_max_lifetime_ms: int = _setting(
        604_800_000, "Longest life of a delegation token.", unit="ms", least=1
    )
    delegation_token_expiry_time_ms: int = _setting(
        86_400_000, "Life of a delegation token until it is renewed.", unit="ms", least=1
    )
    delegation_token_expiry_check_interval_ms: int = _setting(
        3_600_000, "Interval between removals of expired delegation tokens.", unit="ms", least=1
    )
    bootstrap_admin: str = _setting(
        "",
        "Name of the first user of a new cluster, with a SCRAM-SHA-256 and a SCRAM-SHA-512 "
        "credential. In a cluster that exists it must have the same password.",
    )
    bootstrap_admin_password: str = _setting("", "Password of bootstrap.admin.", is_secret=True)
    metrics_port: int = _setting(
        -1, "Port of the Prometheus metrics page; -1: none, 0: a free one.", least=-1, most=65535
    )
    metrics_host: str = _setting(
        "",
        "Address that the metrics page listens at. Empty: that of host if the page has TLS and "
        "authentication, else 127.0.0.1. Give it to open the page without them.",
    )
    metrics_users: str = _setting(
        "",
        "Users of the metrics page by HTTP Basic, name:password, separated by commas. Empty, as "
        "metrics.tokens: no authentication.",
        is_secret=True,
    )
    metrics_tokens: str = _setting(
        "",
        "Bearer tokens that open the metrics page, separated by commas: the next one beside the "
        "present one while it is changed.",
        is_secret=True,
    )
    metrics_ssl_keystore_location: str = _setting(
        "",
        "PEM file with a private key and its chain of certificates, with which the metrics page is "
        "https. It is read again when it changes. Empty: http.",
    )
    metrics_ssl_key_password: str = _setting(
        "", "Password of that private key, if it has one.", is_secret=True
    )
    console_writes: bool = _setting(
        False,
        "Let users of the console replay dead letters, with READ and ALTER_CONFIGS of the topic. "
        "Without it the console only reads.",
    )
    console_registry: str = _setting(
        "",
        "URL of the schema registry by whose schemas the console decodes keys and values of topics "
        "that declare none. Empty: that of registry.port, if there is one.",
    )
    registry_port: int = _setting(
        -1,
        "Port of a schema registry that is served beside the nodes, by their supervisor (needs the "
        "extra registry); -1: none, 0: a free one.",
        least=-1,
        most=65535,
    )
    registry_host: str = _setting(
        "",
        "Address that this registry listens at. Empty: that of host if the registry has TLS and "
        "users, else 127.0.0.1.",
    )
    registry_users: str = _setting("", "File of its users, as lakehead registry --users has it.")
    registry_tokens: str = _setting("", "File of their tokens: lakehead registry --tokens.")
    registry_roles: str = _setting("", "File of their roles: lakehead registry --roles.")
    registry_tls_cert: str = _setting("", "Its certificate in PEM: it serves https.")
    registry_tls_key: str = _setting("", "The key of the certificate, if that file has none.")
    registry_kafka_config: str = _setting(
        "", "File of its settings as a client of the nodes: lakehead registry --command-config."
    )
    max_connections: int = _setting(
        10_000,
        "Maximum open connections; more are closed. Fewer if open files are limited.",
        least=1,
    )
    max_connection_creation_rate: int = _setting(
        2**31 - 1,
        "Maximum new connections per second; others wait to be accepted.",
        least=0,
        most=2**31 - 1,
    )
    max_connections_per_ip: int = _setting(
        2**31 - 1, "Maximum open connections of one address; more are closed.", least=0
    )
    max_connections_per_ip_overrides: str = _setting(
        "", "The same for single addresses: ADDRESS:NUMBER, separated by commas."
    )
    connections_max_idle_ms: int = _setting(
        600_000,
        "Time after which idle connections are closed, and those that do not authenticate.",
        unit="ms",
        least=1,
    )
    quota_window_num: int = _setting(
        11, "Samples over which rates of clients are measured for quotas.", least=1, most=1000
    )
    quota_window_size_seconds: int = _setting(
        1, "Length of one of these samples.", unit="s", least=1, most=3600
    )
    controller_quota_window_num: int = _setting(
        11,
        "Samples of the controller mutation quota: a client may use the mutations of all of them "
        "at once.",
        least=1,
        most=1000,
    )
    controller_quota_window_size_seconds: int = _setting(
        1, "Length of one of these samples.", unit="s", least=1, most=3600
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

    # access
    authorizer_class_name: str = _setting(
        "",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer: access rules (ACLs) decide about "
        "each request. Empty: every client may do everything.",
        choices=("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    super_users: str = _setting(
        "", "Principals that may do everything, type:name, separated by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = _setting(
        False, "Allow everyone to use a resource that no rule is about."
    )
    audit_log_allowed: bool = _setting(
        False, "Write what is allowed to the audit log, too, not only what is denied."
    )
    audit_topic: str = _setting(
        "", "Topic that the events of the audit log are written to as well. Empty: none."
    )

    # metrics of clients
    telemetry_max_bytes: int = _setting(
        MIB,
        "Largest push of a client's metrics (KIP-714), as it comes and decompressed.",
        unit="bytes",
        least=1,
    )
    telemetry_otlp_endpoint: str = _setting(
        "",
        "URL of an OpenTelemetry collector that metrics of clients are forwarded to, by OTLP over "
        "HTTP: https://host:4318/v1/metrics. Empty: none.",
    )
    telemetry_otlp_headers: str = _setting(
        "",
        "Headers of these requests, such as a token: name=value, separated by commas.",
        is_secret=True,
    )

    # traces of requests
    trace_otlp_endpoint: str = _setting(
        "",
        "URL of an OpenTelemetry collector that traces of requests are sent to, by OTLP over HTTP: "
        "https://host:4318/v1/traces. Empty: none.",
    )
    trace_otlp_headers: str = _setting(
        "",
        "Headers of these requests, such as a token: name=value, separated by commas.",
        is_secret=True,
    )
    trace_client_ids: str = _setting(
        "",
        "Ids of clients (client.id) whose requests are traced, separated by commas; *: all. May be "
        "set while nodes run.",
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
    replica_selector_class: str = _setting(
        "",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector: consumers that say where they "
        "are (client.rack) read from a node of that rack (KIP-392). Empty: from leaders.",
        choices=("", RACK_AWARE),
    )
    replica_read_tail: str = _setting(
        "leader",
        "Source of records that are not in objects yet for such a node. leader: it copies them "
        "from the leader, once for all its consumers. wal: it reads them from the leader's log, if "
        "that is in the cluster's store (object:), else as with leader. objects: consumers wait "
        "for the objects, up to upload.age.ms. With wal and objects no records cross zones.",
        choices=("leader", "wal", "objects"),
    )
    replica_read_cache_size: int = _setting(
        32 * MIB, "Memory for what such a node copies from leaders.", unit="bytes", least=MIB
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
    group_max_size: int = _setting(2_147_483_647, "Maximum members of a classic group.", least=1)
    group_consumer_session_timeout_ms: int = _setting(
        45_000,
        "Time after which a silent member of a consumer group is fenced. A group may have its own, "
        "consumer.session.timeout.ms.",
        unit="ms",
        least=1,
    )
    group_consumer_min_session_timeout_ms: int = _setting(
        45_000, "Shortest session timeout of a consumer group.", unit="ms", least=1
    )
    group_consumer_max_session_timeout_ms: int = _setting(
        60_000, "Longest session timeout of a consumer group.", unit="ms", least=1
    )
    group_consumer_heartbeat_interval_ms: int = _setting(
        5_000,
        "Time between heartbeats of a member of a consumer group. A group may have its own, "
        "consumer.heartbeat.interval.ms.",
        unit="ms",
        least=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = _setting(
        5_000, "Shortest heartbeat interval of a consumer group.", unit="ms", least=1
    )
    group_consumer_max_heartbeat_interval_ms: int = _setting(
        15_000, "Longest heartbeat interval of a consumer group.", unit="ms", least=1
    )
    group_consumer_assignment_interval_ms: int = _setting(
        1_000,
        "Shortest time between two assignments of a consumer group; 0: each change of members or "
        "topics has its own. A group may have its own, consumer.assignment.interval.ms.",
        unit="ms",
        least=0,
    )
    group_consumer_min_assignment_interval_ms: int = _setting(
        0, "Shortest assignment interval of a consumer group.", unit="ms", least=0
    )
    group_consumer_max_assignment_interval_ms: int = _setting(
        15_000, "Longest assignment interval of a consumer group.", unit="ms", least=0
    )
    group_consumer_max_size: int = _setting(
        2_147_483_647, "Maximum members of a consumer group.", least=1
    )
    group_consumer_assignors: str = _setting(
        "uniform,range",
        "Assignors that members of consumer groups may choose; the first one is the default.",
    )
    group_consumer_migration_policy: str = _setting(
        "bidirectional",
        "Changes of protocol that are allowed to groups with members.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
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
    group_share_delivery_count_limit: int = _setting(
        5, "Maximum deliveries of a record to a share group.", least=2, most=10
    )
    group_share_partition_max_record_locks: int = _setting(
        2_000, "Maximum records of a partition in flight in a share group.", least=100, most=10_000
    )
    group_share_record_lock_duration_ms: int = _setting(
        30_000,
        "Time for which a member of a share group has a record that it acquired.",
        unit="ms",
        least=1_000,
    )
    group_share_session_timeout_ms: int = _setting(
        45_000,
        "Time after which a silent member of a share group is removed.",
        unit="ms",
        least=1,
    )
    group_share_heartbeat_interval_ms: int = _setting(
        5_000, "Interval of heartbeats of members of share groups.", unit="ms", least=1
    )
    group_share_min_delivery_count_limit: int = _setting(
        2, "Least share.delivery.count.limit of a share group.", least=2, most=5
    )
    group_share_max_delivery_count_limit: int = _setting(
        10, "Greatest share.delivery.count.limit of a share group.", least=5, most=25
    )
    group_share_min_partition_max_record_locks: int = _setting(
        100, "Least share.partition.max.record.locks of a share group.", least=100, most=2_000
    )
    group_share_max_partition_max_record_locks: int = _setting(
        4_000,
        "Greatest share.partition.max.record.locks of a share group.",
        least=2_000,
        most=10_000,
    )
    group_share_min_record_lock_duration_ms: int = _setting(
        15_000,
        "Shortest share.record.lock.duration.ms of a share group.",
        unit="ms",
        least=1_000,
        most=30_000,
    )
    group_share_max_record_lock_duration_ms: int = _setting(
        60_000,
        "Longest share.record.lock.duration.ms of a share group.",
        unit="ms",
        least=30_000,
        most=3_600_000,
    )
    group_share_min_session_timeout_ms: int = _setting(
        45_000, "Shortest session timeout of a share group.", unit="ms", least=1
    )
    group_share_max_session_timeout_ms: int = _setting(
        60_000, "Longest session timeout of a share group.", unit="ms", least=1
    )
    group_share_min_heartbeat_interval_ms: int = _setting(
        5_000, "Shortest heartbeat interval of a share group.", unit="ms", least=1
    )
    group_share_max_heartbeat_interval_ms: int = _setting(
        15_000, "Longest heartbeat interval of a share group.", unit="ms", least=1
    )
    group_share_assignment_interval_ms: int = _setting(
        1_000,
        "Shortest time between two assignments of a share group; 0: each change of members or "
        "topics has its own. A group may have its own, share.assignment.interval.ms.",
        unit="ms",
        least=0,
    )
    group_share_min_assignment_interval_ms: int = _setting(
        0, "Shortest assignment interval of a share group.", unit="ms", least=0
    )
    group_share_max_assignment_interval_ms: int = _setting(
        15_000, "Longest assignment interval of a share group.", unit="ms", least=0
    )
    group_share_max_size: int = _setting(
        200, "Maximum members of a share group.", least=1, most=1_000
    )
    group_share_max_share_sessions: int = _setting(
        2_000, "Maximum share sessions in memory.", least=1
    )
    errors_deadletterqueue_topic_name_prefix: str = _setting(
        "dlq.", "Beginning of the names of dead letter topics of share groups; empty: any."
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = _setting(
        False, "Create a dead letter topic of a share group if it does not exist."
    )
    share_coordinator_state_topic_num_partitions: int = _setting(
        50, "Partitions of __share_group_state; set before its creation.", least=1
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = _setting(
        500,
        "Updates of a share-partition's state after which the whole state is written.",
        least=0,
    )
    share_coordinator_write_timeout_ms: int = _setting(
        5_000, "Time limit of a write by the share coordinator.", unit="ms", least=1
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
        384 * MIB,
        "Memory for recent data, which consumers at the tail read.",
        unit="bytes",
        least=8 * MIB,
    )
    block_cache_size: int = _setting(
        64 * MIB,
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

    listener_overrides: Mapping[str, str] = dataclasses.field(default_factory=Map, repr=False)
    """Settings of single listeners, by their names: `listener.name.<name>.<setting>`."""

    @property
    def store_uri(self) -> str:
        """The object store's URI, with the default filled in."""
        return self.store or f"file:{Path(self.data).absolute()}/store"

    @property
    def store_address(self) -> str:
        """The store as other processes get it, which have no settings of this node: with those of
        encryption.
        """
        return joined_address(
            self.store_uri,
            {
                PROVIDER: self.encryption_key_provider.lower().replace("none", ""),
                KEY_FILE: self.encryption_key_file,
                KMS_KEY: self.encryption_kms_key,
                REQUIRED: "true" if self.encryption_required else "",
            },
        )

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
    def encryption(self) -> EncryptionSettings:
        """Settings of encryption at rest. Raises SettingsError."""
        encryption = EncryptionSettings(
            provider=self.encryption_key_provider.lower(),
            key_file=self.encryption_key_file,
            kms_key=self.encryption_kms_key,
            is_required=self.encryption_required,
        )
        encryption.require_key()
        return encryption

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
