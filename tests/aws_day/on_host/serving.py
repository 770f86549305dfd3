"""Wait until the cluster answers its clients: `serving.py BOOTSTRAP SECONDS`."""

import json
import sys
import threading

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lakehead.storage.clock import SystemClock


def main() -> None:
    """Wait, and print the figures."""
    bootstrap, seconds = sys.argv[1], float(sys.argv[2])
    clock, pause = SystemClock(), threading.Event()
    began = clock.monotonic()
    while True:
        try:
            brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=5).brokers
        except KafkaException:
            if clock.monotonic() - began > seconds:
                raise
            pause.wait(1)
        else:
            print("FIGURES " + json.dumps({"brokers": len(brokers)}))
            return


if __name__ == "__main__":
    main()
