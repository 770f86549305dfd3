"""docs/deploy.md: its steps ask for what there is, and what it has one type on the host works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.terraform_tables import ROOT, declarations
from lakehead.broker.testing import running_broker

PROJECT = ROOT.parents[1]
PAGE = (PROJECT / "docs" / "deploy.md").read_text()
EXAMPLE = ROOT / "examples" / "first-table"


def blocks(step: int) -> list[str]:
    """The commands of a step."""
    (text,) = re.findall(rf"^## {step}\. .*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def test_there_are_ten_steps_and_shells_understand_them() -> None:
    assert re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE) == [str(n + 1) for n in range(10)]
    for step in range(1, 11):
        for block in blocks(step):
            subprocess.run(["bash", "-n"], input=block.encode(), check=True)


def test_what_is_asked_of_terraform_is_an_output_or_a_variable() -> None:
    outputs = {one.name for one in declarations(ROOT, "output")}
    filters = re.findall(r"jq -r ('[^']+'|\S+)", PAGE)
    asked = {name for one in filters for name in re.findall(r"\.([a-z_]+)", one)}
    own = {"instance", "password_secret", "password"}  # of airflow, hosts, and the first user
    assert asked - own <= outputs
    assert {"bootstrap_servers", "store", "tables", "kcat", "airflow", "spark_options"} <= asked
    given = set(re.findall(r"TF_VAR_(\w+)", PAGE))
    assert given == {one.name for one in declarations(EXAMPLE, "variable")}


def test_every_command_is_documented_with_its_options() -> None:
    joined = "".join(blocks(7) + blocks(8) + blocks(9)).replace("\\\n", "")
    cli = (PROJECT / "docs" / "cli.md").read_text()
    commands = re.findall(r"^lakehead ((?:[a-z-]+ ?)+)(.*)$", joined, re.MULTILINE)
    assert len(commands) >= 3
    for words, options in commands:
        known = re.findall(r"^## lakehead (.+)$", cli, re.MULTILINE)
        (command,) = (one for one in known if f"{words} ".startswith(f"{one} "))
        section = cli.partition(f"## lakehead {command}\n")[2].partition("\n## ")[0]
        assert all(f"`{one}" in section for one in re.findall(r" (--[a-z-]+)", options)), command


@pytest.mark.slow
def test_the_first_record_and_the_first_table(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false", "table.roots": str(tmp_path / "tables")}
    with running_broker(settings=settings) as broker:
        program = tmp_path / "lakehead"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lakehead "$@"\n')
        program.chmod(0o755)
        (tmp_path / "admin.properties").write_text("security.protocol=PLAINTEXT\n")
        surroundings = {name: v for name, v in os.environ.items() if "LAKEHEAD" not in name}
        surroundings |= {
            "LAKEHEAD_PATH": broker.path,
            "SERVERS": broker.bootstrap_servers,
            "TABLES": str(tmp_path / "tables"),
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

        def said(commands: str) -> str:
            shell = subprocess.run(
                ["bash", "-euc", commands],
                env=surroundings,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert shell.returncode == 0, shell.stderr
            return shell.stdout

        (seventh,) = blocks(7)
        assert said(seventh).split()[-1] == "0"
        broker.flush()
        said("lakehead materialize orders")
        assert "orders" in said(blocks(8)[0])
        read, by_spark = blocks(9)[0].splitlines()
        assert by_spark.startswith("lakehead sql")  # tests/spark runs such queries
        assert "the first record" in said(read)
