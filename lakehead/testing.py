"""A real broker for tests of programs that use Kafka: a process of its own in a temporary folder.

`running_broker` is the context manager. pytest finds the fixtures by itself where Lakehead is
installed (`docs/testing.md`).
"""

from lakehead.broker.testing import BrokerGone, LakeheadBroker, Record, running_broker

__all__ = ["BrokerGone", "LakeheadBroker", "Record", "running_broker"]
