"""A reader of a store in a process that forks, as Spark's worker daemon does."""

import os
from pathlib import Path

import pytest

import lakehead
from lakehead.lake.store_reader import store_reader
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_reads_after_its_parent_has_read(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    made.write({("orders", 0): [encode_batch([TestRecord(offset=n) for n in range(9)])]})
    parents = store_reader(str(tmp_path))
    assert lakehead.scan(str(tmp_path), "orders").read_all().num_rows == 9
    child = os.fork()
    if not child:
        status = 1
        try:
            rows = lakehead.scan(str(tmp_path), "orders").read_all().num_rows
            status = 0 if rows == 9 and store_reader(str(tmp_path)) is not parents else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store_reader(str(tmp_path)) is parents
