"""Terraform as `lakehead rolling-update` runs it: what it is given, and what guards are told."""

import asyncio
import json
from pathlib import Path

from lakehead.broker.cli.rolling.terraform import MAY_END, Terraform

PROGRAM = f"""#!/bin/sh
echo "$@" >> "$0.given"
[ "$1" = apply ] && echo "may end: ${MAY_END}" >> "$0.given"
echo '{{}}'
"""


def test_replacements_are_named_and_guards_are_told_whose_end_is_meant(tmp_path: Path) -> None:
    program = tmp_path / "terraform"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    terraform = Terraform(str(program), tmp_path, tmp_path, ["-var=x=1"])

    async def scene() -> None:
        saved = await terraform.plan(["h.a"], replaced=["h.a", "h.b"])
        assert saved.content == json.loads("{}")
        await terraform.apply(saved, lambda _: None, may_end=("a-1", "b-1"))
        await terraform.apply(saved, lambda _: None)

    asyncio.run(scene())
    given = (tmp_path / "terraform.given").read_text().splitlines()
    assert given[0].endswith("-var=x=1 -target=h.a -replace=h.a -replace=h.b")
    assert [line for line in given if line.startswith("may end")] == [
        "may end: a-1 b-1",
        "may end: ",
    ]
