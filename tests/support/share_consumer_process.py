"""A share consumer of librdkafka in a process of its own: its share consumer is new, and once ended
the process of all tests when a broker was killed (an abort in one of its threads).

`python -m tests.support.share_consumer_process BOOTSTRAP GROUP TOPIC` accepts records and prints
the value of each, a whole number, in a line, until it gets SIGTERM. Then it closes.
"""

import signal
import subprocess
import sys
import threading
from collections import Counter

from confluent_kafka import ShareConsumer

from tests.support.traffic import QUICK_RECONNECT

_POLL_S = 0.2


class ShareConsumerProcess:
    """The process, with the values that it has printed."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.values: Counter[int] = Counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, bootstrap, group, topic],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Have the consumer leave its group; it ends with status 0."""
        self._process.terminate()
        assert self._process.wait(within_s) == 0
        self._thread.join(within_s)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.values[int(line)] += 1


def main() -> None:
    """Run until SIGTERM."""
    bootstrap, group, topic = sys.argv[1:]
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK_RECONNECT})
    consumer.subscribe([topic])
    while not stopped.is_set():
        for message in consumer.poll(_POLL_S) or ():
            if message.error() is None:
                print(int(message.value() or b""), flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
