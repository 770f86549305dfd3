"""Clusters that releases of each feature level wrote, killed at work: this release goes on with
them and has every record, commit and transaction. `tests/fixtures/write_level.py` wrote them.
"""

import json
import tarfile
from pathlib import Path

import pytest

from lakehead.storage.format.feature_level import LOWEST_LEVEL, NEWEST_LEVEL
from tests.fixtures.write_level import COMPACTED, FLAGS, FOLDER, KINDS, PLAIN, contents
from tests.support.forked_server import forked_server
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until

KEPT = sorted(FOLDER.glob("level-*/*.tar.xz"))
ABORTED, OPEN = "turn 1", "of a transaction that never ends"


def test_every_level_that_is_read_is_kept() -> None:
    """Level 1 is held by its vocabulary, and by the release before in test_releases_together."""
    kept = {(path.parent.name, path.name.partition(".")[0]) for path in KEPT}
    levels = range(LOWEST_LEVEL + 1, NEWEST_LEVEL + 1)
    missing = {(f"level-{level}", kind) for level in levels for kind in KINDS} - kept
    assert not missing, "run: python -m tests.fixtures.write_level"


@pytest.mark.parametrize("archive", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_kept_cluster_is_recovered_and_has_all_that_it_had(tmp_path: Path, archive: Path) -> None:
    kind = archive.name.partition(".")[0]
    expected = json.loads((archive.parent / "content.json").read_text())[kind]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    with forked_server(tmp_path, *FLAGS, *KINDS[kind]) as node:
        assert contents(node, "read_uncommitted") == expected

        committed = {
            topic: {
                partition: [one for one in records if one["value"] not in (ABORTED, OPEN)]
                for partition, records in expected[topic].items()
            }
            for topic in (PLAIN, COMPACTED)
        }

        def is_committed() -> bool:  # once the transaction that was left open has timed out
            found = contents(node, "read_committed")
            return all(found[topic] == records for topic, records in committed.items())

        assert wait_until(is_committed, 60)
    checked = lakehead_command("verify", "--path", f"file:{tmp_path}/data/store")
    assert checked.returncode == 0, checked.stdout + checked.stderr
