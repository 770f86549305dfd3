"""A broker goes on with a rebuilt catalog; and kill -9 of a rebuild at each of its fail-points."""

import asyncio
import shutil
from pathlib import Path

import pytest

from lakehead.storage.failpoints import KILLED
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.tasks import TaskScope
from tests.integration.test_compaction_crashes import in_log
from tests.integration.test_crashes import REBUILD_ALONE, campaign
from tests.integration.test_takeover_processes import Acknowledged, check_streams, node_process
from tests.support.engine_process import open_engine
from tests.support.template_process import lakehead_command
from tests.support.traffic import read_log
from tests.unit.test_rebuild_catalog import rows, write


def rebuild(folder: Path, *flags: str, failpoint: str = "") -> int:
    command = ("rebuild-catalog", "--path", str(folder / "store"), "--json", *flags)
    done = lakehead_command(*command, failpoint=failpoint)
    return done.returncode


@pytest.mark.parametrize("name", sorted(REBUILD_ALONE))
def test_killed_it_leaves_the_old_catalog_or_the_new_one(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    before, old = rows(tmp_path), in_log(tmp_path)
    assert rebuild(tmp_path, "--replace", "--yes", failpoint=name) == KILLED
    assert rows(tmp_path) == before
    assert (in_log(tmp_path) == old) == (name != "rebuild_published")
    assert rebuild(tmp_path, "--replace", "--yes") == 0
    assert rows(tmp_path) == before
    assert run_job(VERIFY, str(tmp_path / "store")).damages == ()


@pytest.mark.parametrize("flags", [(), pytest.param(("--wal", "object:"), marks=pytest.mark.slow)])
def test_a_broker_goes_on_where_the_lost_metadata_ended(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Even after kill -9: what was not uploaded comes out of the write-ahead log."""
    topic, partitions = "crash", 4
    with campaign(tmp_path, flags) as running:
        running.broker.start()
        running.start_clients()
        running.wait_progress(200)
        running.broker.kill()
        running.broker.start()
        running.wait_progress(200)
        running.broker.kill()
        (meta,) = tmp_path.rglob("store/meta")
        shutil.rmtree(meta)
        assert rebuild(meta.parents[1]) == 0
        running.broker.start()
        running.wait_progress(100)
        running.check()
        log = read_log(running.broker.bootstrap, topic, partitions)
        assert sum(map(len, log.values())) > 400


async def test_what_a_leader_acknowledged_of_whom_no_object_tells_is_there(tmp_path: Path) -> None:
    """Of each life of a node the next uploads what it left; the last one ends before any upload."""
    store, wal = f"file:{tmp_path / 'store'}", f"block:{tmp_path / 'wal'}?size=24MiB"
    ends: dict[int, int] = {}
    for failpoint in ("", "", "upload_sealed"):
        with node_process(store, wal, 0, failpoint=failpoint) as node:
            said = Acknowledged(node)
            await asyncio.to_thread(said.read, 60)
            node.kill()
            said.read()
            ends = {one: max(end, ends.get(one, 0)) for one, end in said.ends.items()}
    shutil.rmtree(tmp_path / "store" / "meta")
    assert rebuild(tmp_path) == 0
    scope = TaskScope(lambda name, error: None)
    try:
        await check_streams(await open_engine(store, wal, 0, scope), ends)
    finally:
        await scope.close()
