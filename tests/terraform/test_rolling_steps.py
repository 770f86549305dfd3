"""The steps of `lakehead rolling-update`, by Terraform on an AWS of this machine: each changes one
host and what names it, and after them nothing is left. `make tf-cycle` runs this.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.cli.rolling.host_plan import (
    Action,
    HostPlan,
    check_data,
    check_hosts,
    plan_steps,
    read_plan,
    strays,
)
from lakehead.broker.cli.rolling.terraform import MAY_END
from tests.terraform.inventory import inventory
from tests.terraform.terraform import Terraform, plain
from tests.terraform.test_terraform_cycle import HOST, place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
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


def test_a_host_ends_by_its_step_alone_and_not_by_an_apply(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as made:
        terraform = made.terraform
        terraform.override("more", 'module "lakehead" {\n  hosts_per_zone = 3\n}\n')
        terraform.apply()
        terraform.override("more", 'module "lakehead" {\n  hosts_per_zone = 2\n}\n')
        there = {line for line in inventory(made.aws) if line.split()[0] in {"instance", "volume"}}
        said = plain(terraform.run("apply", "-auto-approve", *terraform.given(), codes=(1,)).text)
        assert "Host a-2 was kept" in said
        assert there <= inventory(made.aws)
        terraform.run("plan", "-out=planned", *terraform.given())
        plan = read_plan(json.loads(terraform.run("show", "-json", "planned").text), RESOURCE)
        check_data(plan)
        (removal, *_) = plan_steps(plan)
        assert (removal.action, removal.slots) == (Action.REMOVE, ("a-2",))
        chosen = [f"-target={address}" for address in removal.targets]
        terraform.run("plan", "-out=planned", *terraform.given(), *chosen)
        now = read_plan(json.loads(terraform.run("show", "-json", "planned").text), RESOURCE)
        assert strays(removal, now) == []
        allowed = replace(terraform, environment={**terraform.environment, MAY_END: "a-2"})
        allowed.apply_planned()
        gone = [line.split()[0] for line in there - inventory(made.aws)]
        assert gone.count("instance") == 1
        assert 1 <= gone.count("volume") <= 2, "its log's, and the one that it booted from"


def test_hosts_of_a_release_beside_the_old_ones_end_nothing_and_take_their_place(
    tmp_path: Path,
) -> None:
    """Blue/green: the plan of the new set deletes nothing, that of the end only the old set."""
    with place(tmp_path, "minimal") as made:
        terraform = made.terraform
        terraform.apply()
        old = inventory(made.aws)
        beside = 'module "lakehead" {\n  hosts_per_zone = 4\n  instance_type = "m7i.xlarge"\n}\n'
        terraform.override("beside", beside)
        plan = planned(terraform)
        assert [one.words for one in plan.pending if "delete" in one.actions] == []
        assert hosts_of(plan) == [f'{HOST}["a-2"]', f'{HOST}["a-3"]']
        terraform.apply_planned()
        assert old <= inventory(made.aws)
        assert planned(terraform).outdated() == [f'{HOST}["a-0"]', f'{HOST}["a-1"]']

        alone = beside.replace("= 4", "= 2\n  first_host = 2")
        terraform.override("beside", alone)
        plan = planned(terraform)
        check_data(plan)
        check_hosts(plan, RESOURCE)
        assert plan.outdated() == []
        removal, *rest = plan_steps(plan)
        assert (removal.action, removal.slots) == (Action.REMOVE, ("a-0", "a-1"))
        assert not [step for step in rest if step.slots], "hosts of the new set are left alone"
        allowed = replace(terraform, environment={**terraform.environment, MAY_END: "a-0 a-1"})
        for step in (removal, *rest):
            now = planned(allowed, *step.targets)
            assert strays(step, now) == []
            allowed.apply_planned()
        left = planned(terraform)
        assert (left.pending, left.changes_outputs) == ([], True)
        terraform.apply_planned()
        assert not planned(terraform).changes_outputs
        assert set(terraform.output("cluster")["hosts"]) == {"a-2", "a-3"}
        servers = terraform.output("cluster")["bootstrap_servers"]
        assert len(servers.split(",")) == 2
