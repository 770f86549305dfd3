"""The steps of `lakehead rolling-update`, by Terraform on an AWS of this machine: each changes one
host and what names it, and after them nothing is left. `make tf-cycle` runs this.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.cli.rolling.host_plan import (
    Action,
    HostPlan,
    check_data,
    check_hosts,
    plan_steps,
    read_plan,
    strays,
)
from tests.terraform.terraform import Terraform
from tests.terraform.test_terraform_cycle import HOST, place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
RESOURCE = "aws_instance.host"
NEXT = {"lakehead_wheel": "s3://packages/lakehead/lakehead-2.0-py3-none-any.whl"}


def planned(terraform: Terraform, *targets: str, replaced: Sequence[str] = ()) -> HostPlan:
    """A plan of the next release, ready to be applied."""
    chosen = [f"-target={address}" for address in targets]
    chosen += [f"-replace={address}" for address in replaced]
    terraform.run("plan", "-out=planned", *terraform.given(NEXT), *chosen, codes=(0, 2))
    shown: Any = json.loads(terraform.run("show", "-json", "planned").text)
    return read_plan(shown, RESOURCE)


def hosts_of(plan: HostPlan) -> list[str]:
    return [change.address for change in plan.pending if change.slot]


def test_each_step_replaces_one_instance_and_what_names_it(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as made:
        terraform = made.terraform
        terraform.apply()
        asked = planned(terraform)
        assert hosts_of(asked) == [], "an apply stops no host"
        assert len(asked.outdated()) == 2
        plan = planned(terraform, replaced=asked.outdated())
        check_data(plan)
        check_hosts(plan, RESOURCE)
        assert plan.store.startswith("s3://")
        assert {slot: host.host_id for slot, host in plan.then.items()} == {
            "a-0": "lakehead-a-0",
            "a-1": "lakehead-a-1",
        }
        assert all(host.node_ids for host in plan.then.values())
        assert len(hosts_of(plan)) == 2
        replaced: list[str] = []
        for step in plan_steps(plan):
            now = planned(terraform, *step.targets)
            outdated = [one for one in now.outdated(plan.then) if one in step.targets]
            if outdated:
                now = planned(terraform, *step.targets, replaced=outdated)
            assert strays(step, now) == []
            assert hosts_of(now) == [f'{HOST}["{slot}"]' for slot in step.slots]
            terraform.apply_planned()
            replaced += step.slots if step.action is Action.REPLACE else ()
        assert replaced == ["a-0", "a-1"]
        left = planned(terraform)
        assert hosts_of(left) == []
        assert left.outdated() == []
        assert not any(change.is_deletion for change in left.pending)
        terraform.apply_planned()
        assert planned(terraform).pending == []
