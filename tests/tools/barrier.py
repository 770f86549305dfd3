"""Waits until a broker shows what was changed before: Kafka's answers changes before it does."""

from itertools import count

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.support.waiting import wait_until

TOPIC = "barrier"
LIMIT_S = 60.0
_SETTING = "file.delete.delay.ms"


class Barrier:
    """Changes that were asked for before `wait` are to be seen after it.

    A broker takes changes to metadata in their order: once it shows one more, it shows them all.
    """

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._values = map(str, count(1))
        (made,) = self._admin.create_topics([NewTopic(TOPIC, 1, 1)]).values()
        made.result(LIMIT_S)

    def wait(self) -> None:
        """Make one more change, and wait until the broker shows it."""
        value = next(self._values)
        entry = ConfigEntry(_SETTING, value, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        (changed,) = self._admin.incremental_alter_configs([topic]).values()
        changed.result(LIMIT_S)
        assert wait_until(lambda: self._shown() == value, LIMIT_S), "the change is not shown"

    def _shown(self) -> str:
        topic = ConfigResource(ResourceType.TOPIC, TOPIC)
        (described,) = self._admin.describe_configs([topic]).values()
        value: str = described.result(LIMIT_S)[_SETTING].value
        return value
