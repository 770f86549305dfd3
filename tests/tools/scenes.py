"""What goes on at a broker while tools look at it: members of a group, an open transaction."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.apache_kafka.tools import command

LIMIT_S = 60.0
_LAST = frozenset({"offsets_committed", "offsets_acknowledged"})
"""Events of Kafka's verifiable consumers that follow those of records."""
RECORDS = 26
"""What topic `read` still has when a group looks at it."""


@contextmanager
def members(bootstrap: str) -> Iterator[None]:
    """A member of group `live` reads topic `read`, with a client id of its own."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "live", "client.id": "reader"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "log_level": 3})
    consumer.subscribe(["read"])
    assert len(consumer.consume(RECORDS, timeout=LIMIT_S)) == RECORDS
    consumer.commit(asynchronous=False)
    try:
        yield
    finally:
        consumer.close()


@contextmanager
def consumer_members(bootstrap: str) -> Iterator[None]:
    """A member of group `modern`, of the consumer protocol, has read topic `read`."""
    others = ("--group-protocol", "consumer", "--reset-policy", "earliest")
    with _reading("kafka-verifiable-consumer", bootstrap, "modern", "records_consumed", *others):
        yield


@contextmanager
def share_members(bootstrap: str) -> Iterator[None]:
    """A member of share group `sharing` has read topic `read`, and acknowledged all of it."""
    with _reading("kafka-verifiable-share-consumer", bootstrap, "sharing", "offsets_acknowledged"):
        yield


@contextmanager
def _reading(tool: str, bootstrap: str, group: str, counted: str, *others: str) -> Iterator[None]:
    """A tool that reads topic `read` for a group: entered when it has committed, or acknowledged,
    everything. `counted`: the event that has the number of records.
    """
    at = ("--bootstrap-server", bootstrap, "--topic", "read", "--group-id", group)
    with subprocess.Popen(
        command(tool, *at, *others),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            count = 0
            for line in process.stdout:
                event: dict[str, Any] = json.loads(line) if line.startswith("{") else {"name": ""}
                if event["name"] == counted:
                    count += event["count"]
                if event["name"] in _LAST and count >= RECORDS:
                    break
            assert count >= RECORDS, f"{tool} ended"
            yield
        finally:
            process.terminate()


@contextmanager
def open_transaction(bootstrap: str) -> Iterator[None]:
    """A transaction on partition 0 of topic `open` is begun, and aborted in the end.

    Its id is taken over then: that waits until the transaction is over.
    """
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "lingering", "log_level": 3}
    producer = Producer(settings)
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("open", b"undecided", partition=0)
    assert producer.flush(LIMIT_S) == 0
    try:
        yield
    finally:
        producer.abort_transaction(LIMIT_S)
        Producer(settings).init_transactions(LIMIT_S)


SCENES: Mapping[str, Callable[[str], AbstractContextManager[None]]] = {
    "members": members,
    "consumer members": consumer_members,
    "share members": share_members,
    "open transaction": open_transaction,
}
