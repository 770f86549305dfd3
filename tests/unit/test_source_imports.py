"""The modules that each process of a Spark query loads: their import is most of a first query."""

import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    """Return the names of the modules that a new process has after `code`."""
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


SCHEMA = (
    "from lakehead.lake.source.data_source import LakeheadDataSource as Source; "
    "Source({'path': '/p', 'subscribe': 't'}).schema()"
)
PLAN = "import lakehead.lake.source.batch_reader"


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        (SCHEMA, ["pyarrow", "asyncio", "lakehead.storage.object_store", "lakehead.lake.catalog"]),
        (
            PLAN,
            ["structlog", "rich", "numba", "lakehead.storage.wal", "lakehead.lake.decode.decoder"],
        ),
    ],
)
def test_a_process_of_a_query_loads_only_what_its_step_needs(
    code: str, unneeded: list[str]
) -> None:
    assert not set(unneeded) & loaded_by(code)
