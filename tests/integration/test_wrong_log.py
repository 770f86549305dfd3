"""A node that is killed and started on another write-ahead log, as real processes: it is refused,
its own log has all that was acknowledged, and an operator may accept the loss.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from lakehead.broker.testing.broker_process import BrokerGone, LakeheadBroker
from tests.support.supervised import supervised
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until

NEVER = 3_600_000
"""Nothing is uploaded by age (milliseconds)."""
COUNT = 100
ROOT = Path(__file__).resolve().parents[2]


def broker(folder: Path, wal: str, **more: str) -> LakeheadBroker:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return LakeheadBroker(folder, {"wal": wal, "upload.age.ms": NEVER, **settings})


def places(folder: Path, kind: str) -> list[str]:
    if kind == "block":
        return [f"block:{folder}/wal{name}?size=64MiB" for name in "AB"]
    return [f"object:file:{folder}/wal{name}" for name in "AB"]


@pytest.mark.parametrize("kind", ["block", pytest.param("elsewhere", marks=pytest.mark.slow)])
def test_a_node_on_another_log_is_refused_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    own, other = places(tmp_path, kind)
    first = broker(tmp_path, own)
    with first:
        first.create_topic("kept")
        first.produce("kept", [f"{n}" for n in range(COUNT)])
        first.kill()
    for wrong in (other, "object:", "memory:"):
        with pytest.raises(BrokerGone, match=r"kept-0 epoch 0.*--accept-log-loss 0:0"):
            broker(tmp_path, wrong).start()
    if kind == "block":
        assert not (tmp_path / "walB").exists()
    with broker(tmp_path, own) as back:
        found = back.records("kept", at_least=COUNT)
        assert [record.value for record in found] == [b"%d" % n for n in range(COUNT)]
        back.kill()
    # That was one start more: what was to be accepted before is not what would be lost now.
    with pytest.raises(BrokerGone, match=r"--accept-log-loss 0:1"):
        broker(tmp_path, other, accept_log_loss="0:0").start()
    with broker(tmp_path, other, accept_log_loss="0:1") as new:
        new.produce("kept", ["after"])
        assert new.records("kept", at_least=COUNT + 1)[-1].value == b"after"
    shown = lakehead("nodes", "--path", str(tmp_path / "data"), "--json")
    assert '"lost_log"' in shown
    assert '"partitions"' in shown


def test_nodes_of_a_supervisor_are_refused_and_accepted_one_by_one(tmp_path: Path) -> None:
    with supervised(tmp_path, 2, "--num.partitions", "4") as nodes:
        nodes.wait_ready()
        lakehead_topic(nodes.addresses[0])
        assert wait_until(lambda: len(leaders(tmp_path)) == 2, 30), nodes.log
        nodes.process.send_signal(signal.SIGSTOP)  # so that neither is started again
        for node_id in range(2):
            os.kill(nodes.pids(node_id)[0], signal.SIGKILL)
    (tmp_path / "data" / "wal").rename(tmp_path / "away")
    with supervised(tmp_path, 2) as nodes:
        assert nodes.process.wait(60) != 0
        refused = set(re.findall(r"--accept-log-loss (\d):0", nodes.log))
        assert refused, nodes.log
        assert "Traceback" not in nodes.log
    with supervised(tmp_path, 2, "--accept-log-loss", "0:0,1:0") as nodes:
        nodes.wait_ready()
        assert nodes.log.count("log_loss_accepted") == 2
        # A node that is started again has the same flags, and its new log.
        nodes.process.terminate()
        assert nodes.process.wait(60) == 0
        assert nodes.log.count("log_loss_accepted") == 2


def lakehead_topic(address: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 4, 1)])["t"].result(30)


def lakehead(*arguments: str) -> str:
    """Return what a command says."""
    done = lakehead_command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def leaders(folder: Path) -> set[int]:
    shown = lakehead("nodes", "--path", str(folder / "data"), "--json")
    return {node["node"] for node in map(json.loads, shown.splitlines()) if node["leads"]}
