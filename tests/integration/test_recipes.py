"""CONTRIBUTING.md's recipes, followed word by word on a copy of the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lakehead", "broker", "storage", "lake", "connectors", "docs", "tests", "bench")
RECIPE = re.compile(
    r"<!-- (file|in): (\S+?)(?:, before \"(.*)\")? -->\n```python\n(.*?)```", re.DOTALL
)

CALLS = """
import asyncio, json, sys
from pathlib import Path
from tests.support.api_client import api_client
from lakehead.broker.settings import Settings

async def main():
    async with api_client(Path(sys.argv[1])) as client:
        versions = await client.ask(18, 3, lambda m: m.ApiVersionsRequest(
            client_software_name="t", client_software_version="1"))
        got = await client.ask(67, 0, lambda m: m.AllocateProducerIdsRequest(
            broker_id=0, broker_epoch=0))
    served = {one.api_key: [one.min_version, one.max_version] for one in versions.api_keys}
    print(json.dumps({"served": served[67], "ids": got.producer_id_len}))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with what the recipes add."""
    copy = tmp_path_factory.mktemp("recipes")
    ignored = shutil.ignore_patterns("__pycache__", "images")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    recipes = RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert [place for _, place, _, _ in recipes] == [
        "broker/api/allocate_producer_ids.py",
        "broker/settings.py",
    ]
    for kind, place, before, code in recipes:
        if kind == "in":
            text = (copy / place).read_text()
            assert text.count(before) == 1
            (copy / place).write_text(text.replace(before, code + before))
        else:
            assert not (copy / place).exists()
            (copy / place).write_text(code)
    return copy


def run(tree: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_an_api_is_served_once_its_module_is_there(tree: Path, tmp_path: Path) -> None:
    found = json.loads(run(tree, "-c", CALLS, str(tmp_path)).splitlines()[-1])
    assert found == {"served": [0, 0], "ids": 1}


def test_a_setting_is_a_flag_and_in_the_pages_once_its_field_is_there(tree: Path) -> None:
    assert "--metrics.page.max.bytes" in run(tree, "-m", "lakehead", "start", "--help-all")
    pages = run(tree, "-c", "from docs.generate import pages; print(pages()['settings.md'])")
    assert "| `metrics.page.max.bytes` | `1MiB` |" in pages


def test_what_recipes_add_keeps_the_rules(tree: Path) -> None:
    places = ["broker/api/allocate_producer_ids.py", "broker/settings.py"]
    run(tree, "-m", "ruff", "check", *places)
    run(tree, "-m", "ruff", "format", "--check", *places)
