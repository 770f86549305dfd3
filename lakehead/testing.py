"""A real broker for tests of programs that use Kafka: a process of its own in a temporary folder.

`running_broker` is the context manager. `pytest_plugins = ["lakehead.broker.testing.plugin"]` in a
conftest.py has the fixtures of pytest (`docs/testing.md`).
"""

from lakehead.broker.testing import BrokerGone, LakeheadBroker, Record, running_broker

__all__ = ["BrokerGone", "LakeheadBroker", "Record", "running_broker"]
