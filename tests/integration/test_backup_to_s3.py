"""Backups of a cluster of three nodes under load, in a real S3 server, with a key of their own."""

import json
import random
from functools import partial
from pathlib import Path

import pytest

from bench.lakehead_cluster import LakeheadCluster
from bench.s3_server import S3Server
from lakehead.storage.encryption.key_file import add_key
from tests.integration.test_lost_region import PARTITIONS, Load, begin_at_zero, committed
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.template_process import lakehead_command
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

DEFAULT_UPLOADS = ("--upload.age.ms", "10000", "--upload.size", "64m", "--cache.size", "128m")
"""Three nodes that upload five times a second move their floors while tails are being read."""


def key_file(folder: Path, seed: int) -> Path:
    (folder / f"key-{seed}").mkdir()
    path = folder / f"key-{seed}" / "keys"
    add_key(path, f"key-{seed}", rng=random.Random(seed))
    return path


def encrypted(place: str, keys: Path) -> str:
    return f"{place}#encryption.key.provider=file&encryption.key.file={keys}"


def flags(keys: Path, store: str) -> tuple[str, ...]:
    given = ("--encryption.key.provider", "file", "--encryption.key.file", str(keys))
    return (*HASTY, "--store", store, *given, *DEFAULT_UPLOADS)


def has_more_than(load: Load, count: int) -> bool:
    return len(load.acknowledged) > count


@pytest.mark.slow
def test_three_nodes_under_load_are_restored_from_an_encrypted_copy(
    tmp_path: Path, s3_server: S3Server
) -> None:
    own, copied = key_file(tmp_path, 1), key_file(tmp_path, 2)
    cluster_place, copy_place, new_place = (
        f"{s3_server.uri}/{name}" for name in ("cluster", "copy", "new")
    )
    source, target = encrypted(cluster_place, own), encrypted(copy_place, copied)
    surely: dict[tuple[int, int], bytes] = {}
    commits: dict[int, int] = {}
    (tmp_path / "old").mkdir()
    with LakeheadCluster(tmp_path / "old", *flags(own, cluster_place), wal="object") as cluster:
        begin_at_zero(cluster.bootstrap)
        load = Load(cluster.bootstrap)
        try:
            assert wait_until(lambda: len(load.committed) == PARTITIONS, 60)
            for turn in range(3):
                wanted = partial(has_more_than, load, len(load.acknowledged) + 300)
                assert wait_until(wanted, 60)
                surely, commits = dict(load.acknowledged), dict(load.committed)
                done = lakehead_command("backup", target, "--path", source, "--json")
                assert done.returncode == 0, done.stderr
                fields = json.loads(done.stdout)
                assert (fields["backup"], fields["without_the_logs_of"]) == (turn, None)
        finally:
            load.stop()
    with_other_key = lakehead_command("restore", encrypted(copy_place, own), "--dry-run")
    assert with_other_key.returncode == 1
    restored = lakehead_command("restore", target, encrypted(new_place, copied), "--json")
    assert restored.returncode == 0, restored.stderr
    (tmp_path / "new").mkdir()
    node = BrokerProcess(tmp_path / "new", (*flags(copied, new_place), "--wal", "object:"))
    node.start()
    try:
        log = read_log(node.bootstrap, "t", PARTITIONS)
        found = {(index, offset): value for index, some in log.items() for offset, value in some}
        assert found.items() >= surely.items()
        both = found.keys() & load.acknowledged.keys()
        assert all(found[place] == load.acknowledged[place] for place in both)
        now = committed(node.bootstrap)
        assert all(commits[index] <= now[index] <= len(log[index]) for index in range(PARTITIONS))
        assert found
    finally:
        node.stop()
