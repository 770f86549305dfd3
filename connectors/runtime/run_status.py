"""The status of a connector's runs: a record in its topic of positions, for consoles and people.

Key: `status-connector-NAME`, as in Kafka Connect's topic of statuses. Value: JSON with `state`
(RUNNING, STOPPED, FAILED), `worker_id` (host and process), `trace` (the reason of a failure, in a
line), and also `starts` (runs so far), `started_ms` and `updated_ms` (since the epoch). It is
written when a run begins, every `INTERVAL_S`, and at its end. No work rests on it: a run goes on if
it cannot be written.
"""

import threading
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import KafkaException, Producer

from lakehead.connectors.runtime.errors import ConnectorFenced
from lakehead.connectors.runtime.kafka_clients import KafkaConfig, made_client
from lakehead.connectors.runtime.positions import PositionTopic
from lakehead.connectors.runtime.stop import Stop
from lakehead.storage.clock import Clock
from lakehead.storage.jobs.run_record import one_line
from lakehead.storage.jobs.run_recorder import this_process

INTERVAL_S = 30.0
_END_S = 2.0
"""Longest wait of a run for its last status."""


class RunStatus:
    """Keeps the status while a block runs, in a thread of its own. `positions` has its topic, which
    exists.
    """

    def __init__(
        self, config: KafkaConfig, positions: PositionTopic, clock: Clock, stop: Stop
    ) -> None:
        self._positions = positions
        self._clock = clock
        self._stop = stop
        self._started_ms = positions.run_started_ms = clock.now_ms()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="connector-status", daemon=True)
        own = {"message.timeout.ms": 10_000, "linger.ms": 0}
        self._producer: Any = made_client(Producer, {**config, **own})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        left_s = self._stop.left_s(_END_S)
        self._thread.join(left_s)
        if isinstance(error, ConnectorFenced):
            return  # the status is that of the run which has begun
        if error is None or self._stop.is_requested:
            self._write("STOPPED", "")
        else:
            self._write("FAILED", one_line(str(error)) or type(error).__name__)
        self._producer.flush(left_s)

    def _keep(self) -> None:
        self._write("RUNNING", "")
        while not self._ended.wait(INTERVAL_S):
            self._write("RUNNING", "")

    def _write(self, state: str, trace: str) -> None:
        value = {
            "state": state,
            "worker_id": this_process(),
            "trace": trace,
            "starts": self._positions.former_starts + 1,
            "started_ms": self._started_ms,
            "updated_ms": self._clock.now_ms(),
        }
        key = self._positions.status_key
        try:
            self._producer.produce(self._positions.topic, msgspec.json.encode(value), key)
            self._producer.poll(0)
        except (BufferError, KafkaException):
            pass  # the cluster is away: the next one may be written
