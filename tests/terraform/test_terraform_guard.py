"""What holds data, and hosts, are ended by no `terraform apply` or `destroy` that was not meant to.

The guards want a shell and nothing else, since pipelines such as Terraform Cloud have no tools.
"""

import subprocess
from typing import Any

import pytest

from docs.terraform_tables import ROOT, parsed

GUARDS = {"guard": "cluster", "kept_host": "a-0", "kept_group": "group"}
"""By the guard's name, what LAKEHEAD_MAY_END has to name."""
LINES = {
    "guard": ["Nothing was destroyed: bucket lake-bucket may hold", "force_destroy = true first"],
    "kept_host": ["Host a-0 was kept", "lakehead rolling-update", "LAKEHEAD_MAY_END=a-0"],
    "kept_group": ["The group of hosts was kept", "LAKEHEAD_MAY_END=group"],
}


def guards() -> dict[str, dict[str, Any]]:
    blocks = parsed(ROOT / "guard.tf")["resource"]
    return {name: body for one in blocks for name, body in one["terraform_data"].items()}


def command(name: str) -> str:
    """Return what Terraform gives to a shell."""
    (provisioner,) = guards()[name]["provisioner"]
    assert provisioner["local-exec"]["when"] == "destroy"
    return str(provisioner["local-exec"]["command"]).replace('\\"', '"')


def test_the_guard_of_all_is_destroyed_before_any_module() -> None:
    modules = {
        name.strip('"')
        for file in ROOT.glob("*.tf")
        for one in parsed(file).get("module", [])
        for name in one
    }
    assert set(guards()["guard"]["depends_on"]) == {f"${{module.{name}}}" for name in modules}


def test_a_host_s_guard_is_destroyed_before_its_instance_and_its_volume() -> None:
    """It depends on both, and on nothing else, so a step for one host brings no others along."""
    given = guards()["kept_host"]["input"]
    assert "module.brokers.instance_ids" in given["instance"]
    assert "module.wal[0].volume_ids" in given["volume"]
    assert "depends_on" not in guards()["kept_host"]
    assert guards()["kept_group"]["depends_on"] == ["${module.elastic}"]


def end(name: str, *, force: str = "false", may_end: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command(name)],
        env={"BUCKET": "lake-bucket", "SLOT": "a-0", "FORCE": force, "LAKEHEAD_MAY_END": may_end},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("may_end", ["", "a-00", "b-0", "a-1 b-0", "groups", "cluster-2", "xa-0x"])
@pytest.mark.parametrize("name", GUARDS)
def test_an_end_is_refused_with_the_way_out(name: str, may_end: str) -> None:
    done = end(name, may_end=may_end)
    assert done.returncode == 1
    assert all(line in done.stderr for line in LINES[name]), done.stderr


@pytest.mark.parametrize("name", GUARDS)
def test_what_may_end_ends(name: str) -> None:
    assert end(name, force="true").returncode == 0
    assert end(name, may_end="cluster").returncode == 0
    assert end(name, may_end=f"b-0 {GUARDS[name]} c-0").returncode == 0
