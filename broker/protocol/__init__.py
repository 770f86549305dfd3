"""The Kafka wire protocol, sans-I/O: bytes in, messages out; no socket, no clock, no log."""
