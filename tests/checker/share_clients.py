"""Members of share groups, each in a process of its own, and what they saw in a history.

- Members by librdkafka (`share_member_process`), which accept, release and reject records at
  random, explicitly or implicitly, at once, late or too late. They end politely or are killed, and
  are paused now and then for longer than the lock of their records lasts.
- Kafka's own VerifiableShareConsumer where there is Java, which accepts all, in its three modes.

When all faults have ended, `drain` has new members accept whatever is left.
"""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.apache_kafka import tools
from tests.checker.share_history import OK, Delivery, Place, ShareHistory, Verdict
from tests.checker.share_member_process import MemberOptions, name_of
from tests.checker.share_rules import Values, unfinished
from tests.checker.workload import IsOver, Worker, join_all
from tests.support.share_group_configs import EARLIEST, set_group_configs
from tests.support.traffic import QUICK_RECONNECT

LIMIT_S = 60.0
PAUSES_AFTER_S = 5.0
QUIET_S = 1.5
"""When nothing was delivered for so long, and all is done, nothing comes back."""
STALL_S = 30.0
"""When nothing was delivered for so long, nothing is left."""
DRAIN_MEMBERS = 2
RECORDS_MAX = (20, 100, 500)
"""Records that a member takes at once."""
JAVA_MODES = ("auto", "sync", "async")
_TICK_S = 0.05
_JAVA_TICK_S = 0.001
"""Its times are cut to milliseconds."""
Note = Callable[[str, str], None]
"""Takes the name of a member and a line of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLoad:
    """One group: the cluster, the topic that it reads, its members."""

    bootstrap: str
    topic: str
    group: str
    lock_s: float
    """The time of a lock, as the nodes have it."""
    deliveries_max: int
    """The limit of deliveries of a record, as the nodes have it."""
    members: int = 2
    has_java: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs of the group, beside its start at the beginning of the topic."""
    security: Mapping[str, str | int | float] = field(default_factory=dict)
    """Settings of a client of librdkafka, beside the address."""


class ShareClients:
    """The members of one group, from `start` to `drain`."""

    def __init__(self, load: ShareLoad, history: ShareHistory, seed: int) -> None:
        self.load = load
        self.history = history
        self._seed = seed
        self._rng = random.Random(f"{seed}-{load.group}")
        self._workers = [
            Worker(f"{load.group}-member{n}", seed, self._live) for n in range(load.members)
        ]
        if load.has_java:
            self._workers.append(Worker(f"{load.group}-java", seed, self._live_in_java))
        self.complaints: set[str] = set()
        """Errors that members printed: no anomaly by themselves."""

    @property
    def errors(self) -> list[str]:
        """Errors that ended a member, and those that members printed: no anomaly by themselves."""
        own = [error for worker in self._workers for error in worker.errors]
        return own + sorted(self.complaints)

    def configure(self, *, admin: Mapping[str, str | int | float]) -> None:
        """Set the configs of the group, as `admin`."""
        configs = {**EARLIEST, **self.load.configs}
        set_group_configs(self.load.bootstrap, self.load.group, configs, security=admin)

    def start(self) -> None:
        """Begin."""
        for worker in self._workers:
            worker.start()

    def finish(self, within_s: float) -> list[str]:
        """End all; return those that hang."""
        for worker in self._workers:
            worker.stop()
        return join_all(self._workers, within_s)

    def drain(self, log: Values, within_s: float) -> str:
        """Accept all that is left of a log; return the trouble with that, or nothing."""
        names = [f"{self.load.group}-drain{n}" for n in range(DRAIN_MEMBERS)]
        members = [self._member(name, is_draining=True) for name in names]
        began = time.monotonic()
        try:
            while (now := time.monotonic()) - began < within_s:
                quiet_s = now - max(began, self.history.latest)
                if quiet_s > STALL_S:
                    return ""
                if quiet_s > QUIET_S and not unfinished(
                    self.history, log, self.load.deliveries_max
                ):
                    return ""
                time.sleep(_TICK_S)
        finally:
            for member in members:
                member.end(politely=True)
        return f"drain: members of {self.load.group} still get records after {within_s} s"

    # Members by librdkafka.

    def _live(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        member = self._member(name)
        pause_at = time.monotonic() + self._rng.uniform(1, 6) * PAUSES_AFTER_S
        while not is_over() and member.is_running:
            if time.monotonic() > pause_at:
                self._pause(member, is_over)
                pause_at = float("inf")
            time.sleep(_TICK_S)
        member.end(politely=self._rng.random() < 1 / 2)

    def _pause(self, member: "MemberProcess", is_over: IsOver) -> None:
        """Pause a member, mostly for longer than its locks last."""
        begun = time.monotonic()
        until = begun + self.load.lock_s * self._rng.uniform(0.5, 1.5)
        member.send_signal(signal.SIGSTOP)
        while time.monotonic() < until and not is_over():
            time.sleep(_TICK_S)
        member.send_signal(signal.SIGCONT)
        self.history.record_end(member.name, begun, time.monotonic())

    def _member(self, name: str, *, is_draining: bool = False) -> "MemberProcess":
        load, rng = self.load, self._rng
        explicit = is_draining or rng.random() < 2 / 3
        options = MemberOptions(
            topic=load.topic,
            seed=f"{self._seed}-{name}",
            config={
                **QUICK_RECONNECT,
                "bootstrap.servers": load.bootstrap,
                "group.id": load.group,
                "share.acknowledgement.mode": "explicit" if explicit else "implicit",
                "max.poll.records": RECORDS_MAX[-1] if is_draining else rng.choice(RECORDS_MAX),
                "fetch.wait.max.ms": 50,
                **load.security,
            },
            lock_s=load.lock_s,
            is_draining=is_draining,
        )
        command = [sys.executable, "-m", "tests.checker.share_member_process"]
        return MemberProcess(
            name, [*command, json.dumps(asdict(options))], self._note, self.history
        )

    def _note(self, name: str, line: str) -> None:
        event = json.loads(line)
        if "got" in event:
            for partition, offset, count, value in event["got"]:
                delivery = Delivery(name, value, count, event["begun"], event["ended"])
                self.history.record_delivery(Place(partition, offset), delivery)
        elif "says" in event:
            for partition, offset, verdict in event["says"]:
                self.history.record_verdict(
                    Place(partition, offset), name, Verdict(verdict), event["begun"]
                )
        elif "response" in event:
            places = [Place(*place) for place in event["response"]]
            self.history.record_response(name, places, event["code"], event["ended"])
        else:
            self.complaints.add(event["error"])

    # Kafka's own member.

    def _live_in_java(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        load = self.load
        command = tools.command(
            "kafka-verifiable-share-consumer",
            *("--bootstrap-server", load.bootstrap, "--topic", load.topic),
            *("--group-id", load.group, "--verbose"),
            *("--acknowledgement-mode", self._rng.choice(JAVA_MODES)),
        )
        member = JavaMember(name, command, self.history)
        while not is_over() and member.is_running:
            time.sleep(_TICK_S)
        member.end(politely=self._rng.random() < 1 / 2)


class MemberProcess:
    """A member's process. A thread notes each line that it prints."""

    def __init__(
        self, name: str, command: Sequence[str], note: Note, history: ShareHistory
    ) -> None:
        self.name = name
        self._note = note
        self._history = history
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        self._process.send_signal(number)

    def end(self, *, politely: bool) -> None:
        """End it, by force if it will not."""
        begun = time.monotonic()
        if politely:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LIMIT_S / 2)
        self._process.kill()
        self._process.wait()
        self._reader.join(LIMIT_S)
        self._history.record_end(self.name, begun, time.monotonic())

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # one that was killed may print half of one
                    try:
                        self._note(self.name, line)
                    except (LookupError, TypeError, ValueError) as error:
                        text = f"not understood: {self.name}: {line[:200]!r}: {error!r}"
                        self._history.contradictions.append(text)


class JavaMember(MemberProcess):
    """A VerifiableShareConsumer, which prints times of the wall clock and no delivery counts. It
    has requests under way whenever it likes, so a delivery may begin with its life.
    """

    def __init__(self, name: str, command: Sequence[str], history: ShareHistory) -> None:
        self._began = time.monotonic()
        self._epoch_s = time.time() - self._began
        self._values: dict[Place, str] = {}
        super().__init__(name, command, self._note_line, history)

    def _note_line(self, name: str, line: str) -> None:
        event = json.loads(line)
        at = event["timestamp"] / 1000 - self._epoch_s
        if event["name"] == "record_data":
            place = Place(event["partition"], event["offset"])
            self._values[place] = name_of(event["value"].encode())
        elif event["name"] == "records_consumed":
            for place in _places(event):
                delivery = Delivery(name, self._values.pop(place), None, self._began, at)
                self._history.record_delivery(place, delivery)
                self._history.record_verdict(place, name, Verdict.ACCEPT, at)
        elif event["name"] == "offsets_acknowledged":
            code = OK if event["success"] else event.get("error", "no message")
            self._history.record_response(name, _places(event), code, at + _JAVA_TICK_S)


def _places(event: Mapping[str, Any]) -> list[Place]:
    return [
        Place(partition["partition"], offset)
        for partition in event["partitions"]
        for offset in partition["offsets"]
    ]
