"""Cordoned nodes (KIP-1066): they keep what they lead, and get no new partitions.

Kafka cordons log directories, by the config `cordoned.log.dirs` of a broker. Here every node has
one directory, the cluster's place in the object store, so that a node is cordoned as a whole.
"""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.definition import split_list
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.records import BrokerConfig, Record
from lakehead.storage.metadata.state import MetadataImage

CORDONED_LOG_DIRS = "cordoned.log.dirs"
_ALL = "*"


def is_cordoned(state: MetadataImage, node_id: int) -> bool:
    """Return true if a node gets no new partitions."""
    configs = state.broker_configs.get(node_id)
    return configs is not None and bool(configs.get(CORDONED_LOG_DIRS))


def check_cordons(records: Iterable[Record], log_dir: str) -> None:
    """Refuse changes of configs that cordon other directories than `log_dir`. Raises KafkaError
    (INVALID_REQUEST).
    """
    for record in records:
        if not isinstance(record, BrokerConfig):
            continue
        value = record.configs.get(CORDONED_LOG_DIRS)
        if value is None:
            continue
        items = split_list(value)
        if _ALL in items and len(items) > 1:
            raise _refused(
                f"When {CORDONED_LOG_DIRS} is set to {_ALL}, it must not contain other values"
            )
        missing = [item for item in items if item not in {_ALL, log_dir}]
        if missing:
            raise _refused(
                f"All entries in {CORDONED_LOG_DIRS} must be present in log.dirs or log.dir. "
                f"Missing entries : {', '.join(missing)}"
            )


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, f"requirement failed: {message}")
