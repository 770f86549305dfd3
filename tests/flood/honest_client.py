"""An honest client, in processes of its own: `python -m tests.flood.honest_client`.

It produces a record now and then, reads it back, and connects as a new client. Each of the three is
a process: in one, the interpreter's lock would add the time of the others to what is measured.
Each prints a line of JSON for an operation, and ends when its standard input does.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

Config = Mapping[str, str | int | float | bool]
VALUE_BYTES = 500
LIMIT_S = 30.0


@dataclass(slots=True)
class Latencies:
    """Seconds, by operation."""

    produce: list[float] = field(default_factory=list)
    """From the call until the record is acknowledged."""
    fetch: list[float] = field(default_factory=list)
    """From the call of the producer until the consumer has the record."""
    connect: list[float] = field(default_factory=list)
    """Until a new client has authenticated and got metadata."""
    failed: int = 0


class HonestClient:
    """A producer and a consumer that stay connected, and one client after another that is new.

    They work while this is entered as a context.
    """

    def __init__(
        self, config: Config, topic: str, partitions: Sequence[int], *, pause_s: float
    ) -> None:
        self._given = json.dumps(
            {"config": config, "topic": topic, "partitions": partitions, "pause_s": pause_s}
        )
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._done: list[tuple[str, float, float | None]] = []

    def __enter__(self) -> Self:
        for kind in WORK:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.flood.honest_client", kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(f"{self._given}\n")  # not an argument: it has a password
            process.stdin.flush()
            reader = threading.Thread(target=self._read, args=(process, kind), daemon=True)
            reader.start()
            self._readers.append(reader)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, reader in zip(self._processes, self._readers, strict=True):
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reader.join()

    def latencies(self, began: float, ended: float) -> Latencies:
        """Return those of operations that ended between two times of the monotonic clock."""
        found = Latencies()
        for kind, at, seconds in tuple(self._done):
            if not began <= at < ended:
                continue
            if seconds is None:
                found.failed += 1
            else:
                getattr(found, kind).append(seconds)
        return found

    def _read(self, process: "subprocess.Popen[str]", kind: str) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            at, seconds = json.loads(text)
            self._done.append((kind, at, seconds))


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed; 0 of none."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _report(began: float, *, failed: bool = False) -> None:
    now = time.monotonic()
    print(json.dumps([now, None if failed else now - began]), flush=True)


def _produce(
    stop: threading.Event, config: Config, topic: str, partitions: Sequence[int], pause_s: float
) -> None:
    producer = Producer({**config, "linger.ms": 0, "acks": "all"})
    number = 0
    while not stop.is_set():
        began = time.monotonic()
        value = f"{began!r} ".encode().ljust(VALUE_BYTES, b".")

        def acknowledged(error: object, _: Message, began: float = began) -> None:
            _report(began, failed=error is not None)

        partition = partitions[number % len(partitions)]
        producer.produce(topic, value, partition=partition, on_delivery=acknowledged)
        number += 1
        while (left := began + pause_s - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush(LIMIT_S)


def _fetch(
    stop: threading.Event, config: Config, topic: str, partitions: Sequence[int], pause_s: float
) -> None:
    consumer = Consumer(
        {
            **config,
            "group.id": "honest",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, one) for one in partitions])
    while not stop.is_set():
        message = consumer.poll(10 * pause_s)
        if message is not None and message.error() is None:
            _report(float((message.value() or b"").split()[0]))
    consumer.close()


def _connect(
    stop: threading.Event, config: Config, topic: str, partitions: Sequence[int], pause_s: float
) -> None:
    while not stop.wait(10 * pause_s):
        began = time.monotonic()
        try:
            AdminClient(dict(config)).list_topics(topic, timeout=LIMIT_S)
        except Exception:
            _report(began, failed=True)
        else:
            _report(began)


WORK: Mapping[str, Callable[[threading.Event, Config, str, Sequence[int], float], None]] = {
    "produce": _produce,
    "fetch": _fetch,
    "connect": _connect,
}


def main() -> None:
    """Do one kind of work until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=WORK)
    work = WORK[parser.parse_args().kind]
    given = json.loads(sys.stdin.readline())
    stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    work(stop, given["config"], given["topic"], given["partitions"], given["pause_s"])


if __name__ == "__main__":
    main()
