"""`lakehead start --nodes N` as a user runs it: real processes, real signals, one log."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.process import free_port
from tests.support.supervised import Supervised, supervised
from tests.support.waiting import wait_until

NODES = 2


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path, NODES) as nodes:
        nodes.wait_ready()
        yield nodes


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_killed_node_comes_back_the_others_are_replaced_in_turn_and_all_stop_cleanly(
    running: Supervised,
) -> None:
    nodes = range(NODES)
    os.kill(running.pids(1)[0], signal.SIGKILL)
    assert wait_until(lambda: running.lives_ready(1) == 2, 30), running.log
    assert "node_id=1 event=node_restarts in_s=1.0" in running.log

    running.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: "rolling_restart_completed" in running.log, 60), running.log
    assert [running.lives_ready(n) for n in nodes] == [2, 3]
    ports = [re.findall(rf"node_id={n} event=node_ready.* port=(\d+)", running.log) for n in nodes]
    assert [len(set(one)) for one in ports] == [1] * NODES, "a node keeps its port"

    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(30) == 0
    assert not [pid for n in nodes for pid in running.pids(n) if is_running(pid)]
    assert running.log.count("event=node_stopped") == 2 * NODES
    lines = running.log.splitlines()
    assert [line for line in lines if "node_id=" not in line and "rolling_" not in line] == []


def test_nodes_end_with_a_supervisor_that_was_killed(running: Supervised) -> None:
    running.process.kill()
    running.process.wait(30)
    pids = [running.pids(n)[0] for n in range(NODES)]
    assert wait_until(lambda: not any(map(is_running, pids)), 30), running.log
    assert running.log.count("event=node_stopped") == NODES, "they stopped cleanly"


def test_a_node_that_hangs_does_not_keep_the_others_from_stopping(tmp_path: Path) -> None:
    """It is killed when its time is over, and the exit status says so."""
    with supervised(tmp_path, NODES, "--shutdown.timeout.ms", "1") as nodes:
        nodes.wait_ready()
        frozen = nodes.pids(1)[0]
        os.kill(frozen, signal.SIGSTOP)
        nodes.process.send_signal(signal.SIGTERM)
        assert nodes.process.wait(60) == 1
        assert "lakehead: node 1: it did not stop within" in nodes.log
        assert not is_running(frozen)


def test_a_port_in_use_ends_the_start_and_names_the_node(tmp_path: Path) -> None:
    with socket.socket() as taken:
        port = free_port() + 1
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with supervised(tmp_path, NODES, "--port", str(port - 1)) as nodes:
            assert nodes.process.wait(60) == 1
            assert f"lakehead: node 1: cannot listen on 127.0.0.1:{port}" in nodes.log
            assert "set another port" in nodes.log
            assert "lakehead: node 1 did not start" in nodes.log
            assert "Traceback" not in nodes.log
            assert not nodes.addresses
            assert not [pid for n in range(NODES) for pid in nodes.pids(n) if is_running(pid)]


def test_what_nodes_cannot_share_is_refused_at_once(tmp_path: Path) -> None:
    port = free_port()
    with supervised(tmp_path, NODES, "--port", str(port), "--metrics.port", str(port + 1)) as nodes:
        assert nodes.process.wait(30) == 1
        assert nodes.log.startswith("lakehead: metrics.port: ")
        assert nodes.log.count("\n") == 1
