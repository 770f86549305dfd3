"""A broker that tests own: started, flushed, killed, started again, gone with them.

It is a process of its own, not a thread of the tests: it has its own clocks (a test may freeze
its), its own log and its own lock of the interpreter; `kill` is a real `kill -9`. The price is what
Python takes to start and to import it, once for a session.
"""

import contextlib
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from lakehead.broker.testing.topic_records import Record, read_topic
from lakehead.installation import ROOT
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import LakeheadError

_START_S = 30.0
_STOP_S = 30.0
_REQUEST_TIMEOUT_S = 60.0
_PORTS = range(10_000, 32_000)
"""Below those that the system gives to outgoing connections, so that a killed broker finds its own
free when it is started again."""
_PORTS_TRIED = 50
_DEFAULTS = {
    "wal": "object:",  # no file of its full size to begin with, and a kill loses nothing
    "maintain": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class BrokerGone(LakeheadError):
    """The broker did not start, or has ended. The message holds the end of its log."""


class LakeheadBroker:
    """One broker on one folder, not started. Safe for use by several threads.

    `settings` are those of `lakehead start` by name (`message.max.bytes`).
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.folder = folder
        self._settings = {"data": str(folder / "data")} | _DEFAULTS
        self._settings |= {name: str(value) for name, value in (settings or {}).items()}
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._port = int(self._settings.pop("port", "0"))
        self._address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._responses: Responses
        self._lock = threading.Lock()
        self._admin: Any = None

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers for Kafka clients: `host:port`. The same after a restart."""
        assert self._address, "the broker was never started"
        return self._address

    @property
    def path(self) -> str:
        """The place of the cluster, as a URI: for `lakehead.scan`, Spark's `path`, commands'
        `--path`.
        """
        return self._settings.get("store") or f"file:{self.folder / 'data' / 'store'}"

    @property
    def log(self) -> str:
        """The end of what the broker logged, in all its lives."""
        file = self.folder / "broker.log"
        return (
            "\n".join(file.read_text(errors="replace").splitlines()[-30:]) if file.exists() else ""
        )

    @property
    def is_running(self) -> bool:
        """Return true if it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start, also again; return when clients can connect. Raises BrokerGone."""
        assert not self.is_running, "the broker is running"
        said = ""
        for _ in range(_PORTS_TRIED):
            port = self._port or self._rng.choice(_PORTS)
            said = self._launch(port)
            if said.startswith("ready "):
                self._port, self._address = port, said.removeprefix("ready ")
                return self
            self._end()
            if self._port or "cannot listen on" not in said:
                break
        raise BrokerGone(f"the broker did not start: {said.removeprefix('error ')}\n{self.log}")

    def stop(self) -> None:
        """Stop cleanly, everything in objects; by force when that takes too long."""
        if self.is_running:
            with contextlib.suppress(BrokerGone):
                self._request("stop", _STOP_S)
        self._end()

    def kill(self) -> None:
        """`kill -9`. Acknowledged records are there after `start`."""
        if self._process is not None:
            self._process.kill()
        self._end()

    def flush(self) -> None:
        """Have everything that was acknowledged in objects now, where Spark and `lakehead.scan`
        read it, instead of seconds later. Raises BrokerGone, LakeheadError.
        """
        self._request("upload", _REQUEST_TIMEOUT_S)

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic and return its name. Raises KafkaException of confluent_kafka."""
        from confluent_kafka.cimpl import NewTopic

        new = NewTopic(name, partitions, 1, config=dict(configs or {}))
        self._admin_client().create_topics([new])[name].result(_REQUEST_TIMEOUT_S)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises KafkaException of confluent_kafka."""
        self._admin_client().delete_topics([name])[name].result(_REQUEST_TIMEOUT_S)

    def produce(
        self,
        topic: str,
        records: Iterable[bytes | str | tuple[bytes | str | None, bytes | str | None]],
    ) -> None:
        """Produce values, or pairs of key and value, and wait until they are acknowledged. Raises
        KafkaException of confluent_kafka.
        """
        from confluent_kafka import KafkaException, Producer

        errors: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        # Once each without idempotence, whose producer id takes the client half a second to get.
        producer = Producer({**self._client_config(), "retries": 0})
        for record in records:
            key, value = record if isinstance(record, tuple) else (None, record)
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        if errors:
            raise KafkaException(errors[0])

    def records(self, topic: str, *, at_least: int = 0, timeout_s: float = 10.0) -> list[Record]:
        """Return the topic's committed records up to its end, by partition and offset, once there
        are `at_least` so many. Raises TimeoutError, KeyError (no such topic).
        """
        return read_topic(
            self.bootstrap_servers, topic, self._clock, at_least=at_least, timeout_s=timeout_s
        )

    def _client_config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}

    def _admin_client(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(self._client_config())
        return self._admin

    def _launch(self, port: int) -> str:
        """Start a process; return what it says first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {n: v for n, v in os.environ.items() if not n.startswith("LAKEHEAD_")}
        paths = (str(ROOT), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        settings = json.dumps({**self._settings, "port": str(port)})
        with (self.folder / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                # -P: a test's working folder may have modules with names like ours.
                [sys.executable, "-P", "-m", "lakehead.broker.testing.node_process", settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C is for the tests, which end it after that
            )
        assert process.stdout is not None
        self._process, self._responses = process, Responses(process.stdout.fileno(), self._clock)
        try:
            return self._responses.line(_START_S) or "error it ended without a word"
        except TimeoutError:
            return f"error it was not ready within {_START_S:g} s"
        except BaseException:
            self.kill()
            raise

    def _request(self, command: str, timeout_s: float) -> None:
        with self._lock:
            process = self._process
            said = None
            if process is not None and process.stdin is not None:
                with contextlib.suppress(BrokenPipeError, TimeoutError):
                    process.stdin.write(f"{command}\n".encode())
                    process.stdin.flush()
                    said = self._responses.line(timeout_s)
        if said is None:
            if process is not None:
                process.kill()  # a late response must not be taken for another's
            raise BrokerGone(f"the broker does not respond\n{self.log}")
        if said != "done":
            raise LakeheadError(said.removeprefix("error "))

    def _end(self) -> None:
        """Wait for the end of the process, by force if need be, and close its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def running_broker(
    folder: Path | None = None, settings: Mapping[str, object] | None = None
) -> Iterator[LakeheadBroker]:
    """Run a broker with its data in `folder`, or in a temporary one that is removed at the end.

    `settings` are those of `lakehead start` by name. Raises BrokerGone.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="lakehead-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        yield stack.enter_context(LakeheadBroker(folder, settings))


class Responses:
    """Reads lines of a pipe."""

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._read = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN | select.POLLHUP)

    def line(self, timeout_s: float) -> str | None:
        """Return the next line, None at the end. Raises TimeoutError."""
        until = self._clock.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_ms = (until - self._clock.monotonic()) * 1000
            if left_ms <= 0 or not self._poll.poll(left_ms):
                raise TimeoutError
            more = os.read(self._descriptor, 1 << 16)
            if not more:
                return None
            self._read += more
        line, self._read = self._read.split(b"\n", 1)
        return line.decode(errors="replace")
