"""`terraform destroy` goes no further than its guard while the bucket may hold data."""

import subprocess

import pytest

from docs.terraform_tables import ROOT, parsed


def command() -> str:
    """Return what Terraform gives to a shell."""
    (block,) = parsed(ROOT / "guard.tf")["resource"]
    (provisioner,) = block["terraform_data"]["guard"]["provisioner"]
    assert provisioner["local-exec"]["when"] == "destroy"
    return str(provisioner["local-exec"]["command"]).replace('\\"', '"')


def test_the_guard_is_destroyed_before_any_module() -> None:
    (block,) = parsed(ROOT / "guard.tf")["resource"]
    modules = {
        name.strip('"')
        for file in ROOT.glob("*.tf")
        for one in parsed(file).get("module", [])
        for name in one
    }
    assert set(block["terraform_data"]["guard"]["depends_on"]) == {
        f"${{module.{name}}}" for name in modules
    }


def destroy(*, force: str = "false", may_end: str = "") -> subprocess.CompletedProcess[str]:
    """Run the guard with a shell and nothing else, as in a pipeline that has no tools."""
    return subprocess.run(
        ["/bin/sh", "-c", command()],
        env={"BUCKET": "lake-bucket", "FORCE": force, "LAKEHEAD_MAY_END": may_end},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("may_end", ["", "a-0", "cluster-2", "a-cluster"])
def test_a_destroy_is_refused_with_the_way_out_and_needs_no_tool(may_end: str) -> None:
    done = destroy(may_end=may_end)
    assert done.returncode == 1
    assert "Nothing was destroyed: bucket lake-bucket may hold data" in done.stderr
    assert "force_destroy = true first" in done.stderr


def test_a_destroy_goes_on_once_the_data_were_given_up() -> None:
    assert destroy(force="true").returncode == 0
    assert destroy(may_end="cluster").returncode == 0
    assert destroy(may_end="a-0 cluster").returncode == 0
