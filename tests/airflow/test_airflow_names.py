"""The names that provider and DAGs import are there in each Airflow that they run on.

Without network: by a stored list of each version's names. `make airflow-versions` compares that
with the versions themselves.
"""

import re
from pathlib import Path

import pytest

from lakehead.connectors.airflow.features import FEATURES
from tests.support.airflow_names import Imported, imports_of, names_here, our_imports, stored

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("airflow")

LISTS = stored()
IMPORTS = our_imports()


def missing(imports: list[Imported], version: str) -> list[str]:
    names = LISTS[version]
    number = tuple(map(int, version.split(".")))
    return [
        f"{one.path}:{one.line}: {one.module} of Airflow {version} has no {one.name}"
        for one in imports
        if one.is_needed(number) and one.name not in names.get(one.module, ())
    ]


@pytest.mark.parametrize("version", sorted(LISTS))
def test_each_imported_name_is_there(version: str) -> None:
    assert missing(IMPORTS, version) == []


def test_a_name_of_a_newer_airflow_is_found(tmp_path: Path) -> None:
    file = tmp_path / "newer.py"
    file.write_text(
        "from airflow.sdk import BaseHook, DAG\n"
        "def later():\n"
        "    from airflow.sdk.log import nothing\n"
        "if TYPE_CHECKING:\n"
        "    from airflow.sdk import Nothing\n"
        "if AIRFLOW >= (3, 2):\n"
        "    from airflow.sdk.definitions.callback import AsyncCallback\n"
        "elif AIRFLOW >= (3, 1):\n"
        "    from airflow.sdk.definitions.nowhere import AsyncCallback\n"
    )
    imports = list(imports_of(file))
    oldest, second, *_, newest = sorted(LISTS)
    assert [line.split()[-1] for line in missing(imports, oldest)] == ["BaseHook", "nothing"]
    modules = [line.split()[1] for line in missing(imports, second)]
    assert modules == ["airflow.sdk.log", "airflow.sdk.definitions.nowhere"]
    assert [line.split()[-1] for line in missing(imports, newest)] == ["nothing"]


def test_the_list_has_the_versions_that_are_supported_and_is_right_for_this_one() -> None:
    from airflow import __version__

    assert {version.rpartition(".")[0] for version in LISTS} == {"3.0", "3.1", "3.2", "3.3"}
    if __version__ in LISTS:
        here = names_here({one.module for one in IMPORTS})
        for module, names in LISTS[__version__].items():
            if not module.startswith("airflow.providers."):  # of another version, maybe
                assert set(names) - set(here[module]) == set(), module


def test_the_page_says_which_version_has_which_feature() -> None:
    page = (ROOT / "docs/airflow-provider.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    has = {row[-1]: row[1:5] for row in rows if len(row) == 6}
    for feature in FEATURES:
        versions = ["yes" if (3, minor) >= feature.since else "no" for minor in range(4)]
        if len(feature.since) == 3:
            versions[feature.since[1]] = f"from {'.'.join(map(str, feature.since))}"
        assert has[feature.without] == versions


def test_make_tries_the_versions_of_the_list() -> None:
    makefile = (ROOT / "Makefile").read_text()
    tried = re.search(r"^AIRFLOWS \?= (.*)$", makefile, re.MULTILINE)
    assert tried is not None
    pinned = re.search(
        r"^apache-airflow==(\S+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
    )
    assert pinned is not None
    assert sorted(LISTS) == sorted([*tried[1].split(), pinned[1]])
