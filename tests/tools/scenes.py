"""What goes on at a broker while tools look at it: members of a group, an open transaction."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from confluent_kafka import Consumer, Producer

LIMIT_S = 60.0
RECORDS = 26
"""What topic `read` still has when a group looks at it."""


@contextmanager
def members(bootstrap: str) -> Iterator[None]:
    """A member of group `live` reads topic `read`, with a client id of its own."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "live", "client.id": "reader"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["read"])
    assert len(consumer.consume(RECORDS, timeout=LIMIT_S)) == RECORDS
    consumer.commit(asynchronous=False)
    try:
        yield
    finally:
        consumer.close()


@contextmanager
def open_transaction(bootstrap: str) -> Iterator[None]:
    """A transaction on partition 0 of topic `open` is begun, and aborted in the end.

    Its id is taken over then: that waits until the transaction is over.
    """
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "lingering"}
    producer = Producer({**settings, "log_level": 3})
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
    "open transaction": open_transaction,
}
