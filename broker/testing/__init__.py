"""A real broker for tests of programs that use Kafka: a process of its own in a temporary folder.

`running_broker` is the context manager; `lakehead.broker.testing.plugin` has the fixtures of
pytest, which finds them by itself where Lakehead is installed.
"""

from lakehead.broker.testing.broker_process import BrokerGone, LakeheadBroker, running_broker
from lakehead.broker.testing.topic_records import Record

__all__ = ["BrokerGone", "LakeheadBroker", "Record", "running_broker"]
