"""A real broker on a real S3 server that is gone for a while: it slows down, and loses nothing.

`S3_OUTAGE_S` is how long the server is gone (600 for the long run).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.s3_server import S3Server
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.repetitions import repetitions
from tests.support.s3_proxy import (
    CONFLICT,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Delay,
    Fault,
    FaultProxy,
    Rule,
    running_proxy,
)
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until

OUTAGE_S = float(os.environ.get("S3_OUTAGE_S", repetitions(10, 4)))
TOPIC = "outage"
PARTITIONS = 3
VALUE_BYTES = 20_000
HEAL_S = 30.0
RSS_MAX = 400_000_000

pytestmark = pytest.mark.timeout(240 + 3 * OUTAGE_S)


class Campaign:
    """A broker whose store is behind a proxy, and a producer that sends as fast as it may."""

    def __init__(self, folder: Path, server: S3Server, proxy: FaultProxy, *flags: str) -> None:
        self.history = History()
        store = f"{server.uri}/cluster?endpoint={proxy.endpoint}"
        self.broker = BrokerProcess(folder, (*HASTY, "--store", store, *flags))
        self.broker.start()
        create_topic(self.broker.bootstrap, TOPIC, PARTITIONS)
        self.producer = ProducerThread(
            "idempotent",
            self.broker.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=self.history,
            config={**IDEMPOTENT, "message.timeout.ms": 1_800_000},
            value_bytes=VALUE_BYTES,
        )
        self.producer.start()

    @property
    def resident(self) -> int:
        """Bytes of memory that the broker holds."""
        return int(psutil.Process(self.broker.server.process.pid).memory_info().rss)

    def progress(self, records: int = 50) -> None:
        """After each heal, records are acknowledged again, soon and without a restart."""
        mark = self.producer.acknowledged + records
        assert wait_until(lambda: self.producer.acknowledged >= mark, HEAL_S), (
            f"stuck: {self.history.contradictions}\n{self.broker.log}"
        )
        assert self.broker.is_running, self.broker.log

    def check(self) -> None:
        """All that was acknowledged is there, once, in order; also after a restart."""
        assert self.producer.finish() == 0, "records without an answer"
        assert self.history.contradictions == []
        log = read_log(self.broker.bootstrap, TOPIC, PARTITIONS)
        assert violations(self.history, log)[:20] == []
        assert self.broker.stop() == 0, self.broker.log
        self.broker.start()
        assert read_log(self.broker.bootstrap, TOPIC, PARTITIONS) == log


@contextmanager
def campaign(
    folder: Path, server: S3Server, flags: Sequence[str] = ()
) -> Iterator[tuple[Campaign, FaultProxy]]:
    with running_proxy(server.endpoint, seed=5) as proxy:
        running = Campaign(folder, server, proxy, *flags)
        try:
            running.progress()
            yield running, proxy
        finally:
            proxy.rules = []
            with contextlib.suppress(Exception):
                running.producer.finish(0)
            running.broker.kill()


def stalls(acknowledged: Callable[[], int], quiet_s: float, deadline_s: float) -> bool:
    """Return true if nothing was acknowledged for `quiet_s` seconds at some time before the
    deadline.
    """
    deadline = time.monotonic() + deadline_s
    mark, since = acknowledged(), time.monotonic()
    while time.monotonic() < deadline:
        if acknowledged() != mark:
            mark, since = acknowledged(), time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("wal", "outage_s"),
    [((), OUTAGE_S), (("--wal", "object:"), OUTAGE_S / 3)],
    ids=["block", "object"],
)
def test_a_store_that_is_gone_holds_producers_back_and_loses_nothing(
    tmp_path: Path, s3_server: S3Server, wal: Sequence[str], outage_s: float
) -> None:
    with campaign(tmp_path, s3_server, wal) as (running, proxy):
        started = time.monotonic()
        with proxy.unreachable():
            assert stalls(lambda: running.producer.acknowledged, 3.0, max(outage_s, 20.0)), (
                "producers are not held back"
            )
            assert running.broker.is_running, running.broker.log
            time.sleep(max(0.0, outage_s - (time.monotonic() - started)))  # it is this long
            assert running.resident < RSS_MAX
            assert running.broker.is_running, running.broker.log
        running.progress()
        running.check()


@pytest.mark.slow
def test_a_store_that_hangs_and_one_that_throttles_are_outlived(
    tmp_path: Path, s3_server: S3Server
) -> None:
    with campaign(tmp_path, s3_server) as (running, proxy):
        for fault in (SLOW_DOWN, Fault.HANG):
            proxy.rules = [Rule(fault=fault)]
            stalls(lambda: running.producer.acknowledged, 1.0, 6.0)
            assert running.broker.is_running, running.broker.log
            proxy.rules = []
            running.progress()
        running.check()


@pytest.mark.slow
def test_a_bad_day_of_a_store_is_worked_through(tmp_path: Path, s3_server: S3Server) -> None:
    with campaign(tmp_path, s3_server, ("--wal", "object:")) as (running, proxy):
        proxy.rules = [
            Rule(fault=Delay(0.0, 0.05)),
            Rule(fault=SLOW_DOWN, probability=0.1),
            Rule(fault=INTERNAL_ERROR, probability=0.05),
            Rule(fault=CONFLICT, probability=0.05, operations=("PUT",)),
            Rule(fault=Fault.RESET, probability=0.05),
            Rule(fault=Fault.LOST_ANSWER, probability=0.05),
            Rule(fault=Fault.CUT_BODY, probability=0.05, operations=("GET",)),
        ]
        while proxy.seen.faults.total() < 40:
            running.progress(100)
        proxy.rules = []
        running.check()


def test_a_second_signal_ends_a_stop_that_waits_for_the_store_and_nothing_is_lost(
    tmp_path: Path, s3_server: S3Server
) -> None:
    """Meanwhile the log says which trouble the stop waits for."""
    with campaign(tmp_path, s3_server) as (running, proxy):
        with proxy.unreachable():
            running.producer.finish(0)
            broker = running.broker
            broker.server.process.terminate()
            assert wait_until(lambda: "node_stop_waits" in broker.log, 30), broker.log
            assert "object store is failing" in broker.log
            assert broker.is_running
            broker.server.process.terminate()
            assert wait_until(lambda: not broker.is_running, 5), "deaf to the second signal"
            assert broker.exit_status == 128 + signal.SIGTERM
        broker.start()
        log = read_log(broker.bootstrap, TOPIC, PARTITIONS)
        assert violations(running.history, log)[:20] == []


def test_a_stop_while_the_store_is_gone_ends_and_the_next_start_has_everything(
    tmp_path: Path, s3_server: S3Server
) -> None:
    """The block WAL holds what could not be uploaded."""
    with campaign(tmp_path, s3_server, flags=("--shutdown.timeout.ms", "3000")) as (running, proxy):
        with proxy.unreachable():
            running.producer.finish(0)
            assert running.broker.stop() == 0, running.broker.log
        running.broker.start()
        log = read_log(running.broker.bootstrap, TOPIC, PARTITIONS)
        assert violations(running.history, log)[:20] == []
