"""One week: a secured cluster of three nodes, what its operator does with it, and the verdict."""

import errno
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from confluent_kafka import TopicPartition

from bench.lakehead_cluster import LakeheadCluster, Place
from bench.s3_server import running_server
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from tests.checker.history import History, Log, Outcome
from tests.checker.rules import violations
from tests.operations_week.steady_clients import Errors, GroupReader, producer
from tests.support.release_before import unpack_tree
from tests.support.s3_proxy import FaultProxy, running_proxy
from tests.support.secure_cluster import Rule, SecureCluster, add_user, set_quotas
from tests.support.traffic import ProducerThread, create_topic, new_consumer, read_log
from tests.support.waiting import wait_until

VERSION_BEFORE = "c8542508b2462c8f3c70536e2a5ecb5ba8be9bf8"
"""A commit of an earlier version, in which the week begins."""
TOPIC, PARTITIONS = "orders", 6
NODES = 3
SETTLED_S = 60.0
"""After each step all partitions take records again within this."""
STORE_SIZE = "512m"
RULES = (
    Rule("TOPIC", TOPIC, "LITERAL", ("READ", "WRITE", "DESCRIBE")),
    Rule("GROUP", "*", "LITERAL", ("READ",)),
)
UNLIMITED = {"producer_byte_rate": float(1 << 30), "consumer_byte_rate": float(1 << 30)}
LIMITED = {"producer_byte_rate": float(32 << 10), "consumer_byte_rate": float(1 << 30)}
FLAGS = (
    *("--upload.size", "1m", "--upload.age.ms", "500", "--cache.size", "32m"),
    *("--metadata.checkpoint.entries", "50", "--offsets.topic.num.partitions", "3"),
    *("--broker.session.timeout.ms", "3000", "--maintain.tables", "false"),
    *("--leader.imbalance.check.interval.seconds", "1"),
)
GROUPS = {"reports": {}, "invoices": {"group.protocol": "consumer"}}


@dataclass(frozen=True, slots=True)
class Options:
    """A run: how long each step's condition lasts, and how much the clients write."""

    pause_s: float = 10.0
    records_per_s: float = 200.0
    """Of each of two producers."""


@dataclass(slots=True)
class Step:
    """One thing that the operator did, with what clients saw of it."""

    name: str
    seconds: float
    longest_pause_s: float
    """The longest time without an acknowledgement in one of the partitions."""


@dataclass(slots=True)
class Report:
    """The steps in order, and what went wrong. Nothing may be in `anomalies`."""

    steps: list[Step] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the report as a table."""
        lines = [f"{'step':44} {'seconds':>8} {'longest pause':>14}"]
        lines += [
            f"{one.name:44} {one.seconds:8.1f} {one.longest_pause_s:12.2f} s" for one in self.steps
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"ANOMALY: {anomaly}" for anomaly in self.anomalies] or ["No anomalies."]
        return "\n".join(lines)


class Week:
    """The cluster and its clients. Use `run`."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self.options = options
        self.report = Report()
        self.history = History()
        self.errors = Errors()
        self.work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakehead-week-")))
        self.disk = stack.enter_context(_small_disk(self.work / "disk"))
        server = stack.enter_context(running_server((self.disk or self.work) / "s3"))
        self.proxy: FaultProxy = stack.enter_context(running_proxy(server.endpoint))
        self.secure = SecureCluster.make(self.work / "ca", ("localhost", "127.0.0.1"))
        self.bucket = server.uri
        environment = server.environment | {"AWS_ENDPOINT_URL": self.proxy.endpoint}
        self.place = Place(environment=environment)
        before = unpack_tree(self.work / "before", VERSION_BEFORE, ())
        old = {"PYTHONPATH": str(before), "PYTHONSAFEPATH": "1"}
        places = [self.secure.place(self.place) for _ in range(NODES)]
        self.places = places
        self.cluster = LakeheadCluster(
            self.work,
            *(*FLAGS, "--store", f"{server.uri}/cluster"),
            slices=NODES + 1,
            places=[replace(one, environment={**one.environment, **old}) for one in places],
            client=self.secure.user().librdkafka,
        )
        stack.enter_context(self.cluster)
        self.user = self.secure.user("shop", "shop-s3cret")
        admin = self.secure.user()
        bootstrap = self.cluster.bootstrap
        add_user(bootstrap, admin, self.user, rules=RULES, quotas=UNLIMITED)
        create_topic(bootstrap, TOPIC, PARTITIONS, security=admin.librdkafka)
        self.producers: list[ProducerThread] = [
            producer(
                f"till{number}",
                bootstrap,
                TOPIC,
                PARTITIONS,
                self.history,
                self.user,
                options.records_per_s,
                self.errors,
            )
            for number in range(2)
        ]
        self.readers = {
            group: [
                GroupReader(
                    f"{group}{number}",
                    bootstrap,
                    TOPIC,
                    {"group.id": group, **protocol, **self.user.librdkafka},
                    self.errors,
                )
                for number in range(2)
            ]
            for group, protocol in GROUPS.items()
        }

    def run(self) -> Report:
        """Do what the week has, one thing after the other, and judge."""
        for one in self.producers:
            one.start()
        for reader in chain.from_iterable(self.readers.values()):
            reader.start()
        self._step("nothing", lambda: time.sleep(self.options.pause_s))
        self._step("rolling update to this version", self._update)
        self._step("a fourth node joins", self._scale_out)
        self._step("the fourth node leaves", self._scale_in)
        self._step("the store's disk is full", self._fill_disk)
        self._step("the store is out of reach", self._lose_store)
        self._step("new certificates", self._renew_certificates)
        self._step("a quota below the rate, and back", self._change_quota)
        self._step("a node is killed and comes back", self._kill)
        self._judge()
        return self.report

    # Steps.

    def _update(self) -> None:
        """Restart each node with this version, when the one before it serves again."""
        for number, place in enumerate(self.places):
            self.cluster.nodes[number].server.stop()
            self.cluster.replace_node(number, place).server.start()
            self.cluster.wait_members(NODES)
            self._wait_led()

    def _scale_out(self) -> None:
        node = self.cluster.add_node(self.secure.place(self.place))
        node.server.start()
        self.cluster.wait_members(NODES + 1)
        assert wait_until(lambda: node.metric("lakehead_partitions_led") > 0, SETTLED_S), (
            "the fourth node leads nothing"
        )

    def _scale_in(self) -> None:
        self.cluster.nodes[NODES].server.stop()
        self._wait_led()

    def _fill_disk(self) -> None:
        """Take all room of the file system that the store's objects are in, for a while."""
        if self.disk is None:
            self.report.notes.append("no full disk: mounting one needs root")
            return
        filling = self.disk / "filling"
        failures = self._store_failures()
        ends = time.monotonic() + self.options.pause_s
        with filling.open("wb", buffering=0) as file:
            while time.monotonic() < ends:
                try:
                    file.write(bytes(1 << 20))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    time.sleep(0.05)
        filling.unlink()
        assert self._store_failures() > failures, "the full disk has failed no request"

    def _store_failures(self) -> float:
        return sum(n.metric("lakehead_store_failures_total") for n in self.cluster.nodes[:NODES])

    def _lose_store(self) -> None:
        with self.proxy.unreachable():
            time.sleep(self.options.pause_s)

    def _renew_certificates(self) -> None:
        """Write new keys and certificates to the nodes' files, and wait until all show them."""
        old = [self._certificate(place) for place in self.places]
        authority = DevelopmentCa(self.work / "ca", utc(SystemClock().now_ms()))
        authority.issue("node", hosts=("localhost", "127.0.0.1"))
        for place, before in zip(self.places, old, strict=True):
            assert wait_until(lambda p=place, b=before: self._certificate(p) != b, SETTLED_S), (  # type: ignore[misc]
                "a node shows its old certificate"
            )

    def _certificate(self, place: Place) -> bytes:
        context = ssl.create_default_context(cafile=str(self.secure.authority))
        with (
            socket.create_connection((place.host, place.port), 10) as plain,
            context.wrap_socket(plain, server_hostname=place.host) as one,
        ):
            return one.getpeercert(binary_form=True) or b""

    def _change_quota(self) -> None:
        admin = self.secure.user()
        set_quotas(self.cluster.bootstrap, admin, self.user.name, LIMITED)

        def throttled() -> bool:
            nodes = self.cluster.nodes[:NODES]
            return any(n.metric("lakehead_quota_throttled_requests_total") > 0 for n in nodes)

        assert wait_until(throttled, SETTLED_S), "no client is throttled"
        time.sleep(self.options.pause_s)
        set_quotas(self.cluster.bootstrap, admin, self.user.name, UNLIMITED)

    def _kill(self) -> None:
        node = self.cluster.nodes[1]
        node.kill()
        self._wait_led()
        node.server.start()
        self.cluster.wait_members(NODES)

    # Judging.

    def _step(self, name: str, act: Callable[[], None]) -> None:
        """Do one thing, wait until all partitions take records, and note what clients saw."""
        print(name, flush=True)
        began = self.history.clock()
        try:
            act()
        except Exception as error:
            self.report.anomalies.append(f"{name}: {error!r}")
        acted = self.history.clock()
        settled = wait_until(
            lambda: all(self.history.latest.get(p, 0.0) > acted for p in range(PARTITIONS)),
            SETTLED_S,
        )
        if not settled:
            self.report.anomalies.append(f"{name}: not all partitions take records again")
        ended = self.history.clock()
        pause = max(self._pause(partition, began, ended) for partition in range(PARTITIONS))
        self.report.steps.append(Step(name, ended - began, pause))

    def _pause(self, partition: int, began: float, ended: float) -> float:
        """Return the longest time without an acknowledgement in a partition."""
        times = [began, ended]
        times += [
            one.ended
            for one in list(self.history.sends.values())
            if one.partition == partition and began < one.ended < ended
        ]
        return max(later - earlier for earlier, later in pairwise(sorted(times)))

    def _wait_led(self) -> None:
        """Wait until live nodes lead all partitions."""
        one = self.cluster.nodes[0]
        assert wait_until(
            lambda: one.server.is_running and one.metric("lakehead_partitions_unled") == 0,
            SETTLED_S,
        ), "partitions have no leader"

    def _restored(self, log: Log) -> Iterator[str]:
        """Restore a backup beside the cluster; yield what it lacks. The clients have ended."""
        nodes = [one for one in self.cluster.nodes if one.server.is_running]
        unsaved = "lakehead_log_cache_uncommitted_bytes"
        assert wait_until(lambda: all(n.metric(unsaved) == 0 for n in nodes), SETTLED_S)
        copies, place = f"{self.bucket}/copies", f"{self.bucket}/restored"
        environment = self.place.environment
        _lakehead("backup", copies, "--path", f"{self.bucket}/cluster", environment=environment)
        _lakehead("restore", copies, place, environment=environment)
        folder = self.work / "restored"
        folder.mkdir()
        client, admin = self.user.librdkafka, self.secure.user().librdkafka
        flags, places = (*FLAGS, "--store", place), [self.secure.place(self.place)]
        with LakeheadCluster(folder, *flags, nodes=1, places=places, client=admin) as cluster:
            if read_log(cluster.bootstrap, TOPIC, PARTITIONS, security=client) != log:
                yield "restore: the records are not those of the cluster"
            ends = [records[-1][0] + 1 for _, records in sorted(log.items())]
            for group in GROUPS:
                found = _committed(cluster.bootstrap, group, client)
                if found != ends:
                    yield f"restore: group {group} is at {found} and not at {ends}"

    def _judge(self) -> None:
        anomalies = self.report.anomalies
        for one in self.producers:
            if left := one.finish(120):
                anomalies.append(f"{one.name}: {left} records have no response")
        log = read_log(
            self.cluster.bootstrap, TOPIC, PARTITIONS, security=self.secure.user().librdkafka
        )
        places = {(p, offset) for p, records in log.items() for offset, _ in records}
        for group, members in self.readers.items():
            if not wait_until(partial(_have_seen, members, places), SETTLED_S):
                anomalies.append(f"group {group} has not read all records")
            for member in members:
                member.finish()
        anomalies += violations(self.history, log)
        print("a backup is restored beside", flush=True)
        try:
            anomalies += self._restored(log)
        except Exception as error:
            anomalies.append(f"restore: {error!r}")
        refused = {
            one.reason for one in self.history.sends.values() if one.outcome is not Outcome.OK
        }
        anomalies += [f"a record is not acknowledged: {reason}" for reason in sorted(refused)]
        anomalies += sorted(set(self.errors.unexpected))
        self.report.notes.append(
            f"{len(places):,} records; reconnections that librdkafka reported: "
            f"{dict(self.errors.expected)}"
        )


def _committed(bootstrap: str, group: str, client: Mapping[str, str | int | float]) -> list[int]:
    """Return the committed offsets of a group, by partition."""
    consumer = new_consumer(bootstrap, {**client, "group.id": group})
    try:
        places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        return [one.offset for one in consumer.committed(places, timeout=SETTLED_S)]
    finally:
        consumer.close()


def _have_seen(members: Sequence[GroupReader], places: set[tuple[int, int]]) -> bool:
    return places <= set(chain.from_iterable(list(one.seen) for one in members))


def _lakehead(*words: str, environment: Mapping[str, str]) -> None:
    """Run a command of the command line to its end."""
    subprocess.run(
        [sys.executable, "-m", "lakehead", *words],
        env=os.environ | environment,
        check=True,
        capture_output=True,
    )


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a file system of its own for the store's objects; None without the right to."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={STORE_SIZE}", "lakehead-week", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def run(options: Options) -> Report:
    """Run a week; the cluster and its files are gone afterwards."""
    with ExitStack() as stack:
        return Week(options, stack).run()
