"""Leadership: the nodes of a cluster, the controller, and the partitions that this node leads.

In the order of a leader change: `membership` detects a dead node, `controller` fences it and
assigns its streams (`balance` moves others), `log_recovery` recovers its log, `replica_manager`
opens the streams on the new leader and hands them over on the old one. `replication_control`
creates topics and moves leadership by request. `metadata_image` reads leaders and replicas.
`broker_lifecycle` is the node's own part: registration checks, heartbeats, session, controlled
shutdown; `heartbeat` is their format, `inter_broker_client` carries requests, `load_meter`
measures.
"""
