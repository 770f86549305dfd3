"""`lakehead start --registry.port`: the supervisor keeps a schema registry beside the nodes."""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.support.supervised import Supervised
from tests.support.waiting import wait_until


def subjects(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/subjects", timeout=60) as answer:
        return list(json.loads(answer.read()))


@pytest.mark.slow
def test_a_registry_is_kept_beside_the_nodes_and_ends_with_them(tmp_path: Path) -> None:
    cluster = Supervised(tmp_path, 1, ("--registry.port", "0"))
    try:
        cluster.wait_ready()

        def url() -> str:
            found = re.search(r"schema registry at (\S+)", cluster.out.read_text())
            return found[1] if found else ""

        def pids() -> list[int]:
            pattern = r"node_id=registry event=node_started pid=(\d+)"
            return [int(pid) for pid in re.findall(pattern, cluster.log)]

        assert wait_until(lambda: bool(url()), 120), cluster.log
        body = json.dumps({"schema": '"string"'}).encode()
        request = urllib.request.Request(f"{url()}/subjects/kept/versions", data=body)
        urllib.request.urlopen(request, timeout=60).close()
        os.kill(pids()[0], signal.SIGKILL)

        def is_back() -> bool:
            try:
                return len(pids()) == 2 and subjects(url()) == ["kept"]
            except OSError:
                return False

        assert wait_until(is_back, 120), cluster.log
        cluster.process.terminate()
        assert cluster.process.wait(60) == 0
        assert not Path(f"/proc/{pids()[1]}").exists()
    finally:
        cluster.end()
