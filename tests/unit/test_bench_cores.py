"""Servers and clients of the benchmark on cores of their own."""

import os
import subprocess
import sys

import pytest

from bench.process import NotEnoughCores, cores, on_cores

HERE = os.sched_getaffinity(0)


def test_without_a_choice_both_have_all_cores() -> None:
    assert cores(0) == (HERE, HERE)


@pytest.mark.skipif(len(HERE) < 2, reason="needs two cores")
def test_servers_and_clients_share_no_core() -> None:
    servers, clients = cores(1)
    assert len(servers) == len(clients) == 1
    assert not servers & clients
    assert servers | clients <= HERE


@pytest.mark.parametrize("each", [len(HERE) // 2 + 1, -1])
def test_more_cores_than_there_are_is_refused(each: int) -> None:
    with pytest.raises(NotEnoughCores, match=f"this process has {len(HERE)}"):
        cores(each)


def test_a_process_that_is_started_within_the_block_keeps_its_cores() -> None:
    one = {min(HERE)}
    with on_cores(one):
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; input(); print(os.sched_getaffinity(0))"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert os.sched_getaffinity(0) == HERE
    output, _ = child.communicate("\n", timeout=60)
    assert output.strip() == str(one)
