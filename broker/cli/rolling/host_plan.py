"""The changes of hosts in a plan of Terraform, and the steps that make them without a loss.

Pure: from the JSON that `terraform show -json PLAN` prints
(`https://developer.hashicorp.com/terraform/internals/json-format`) to steps.

A host is an instance of one resource (`aws_instance.host`), its key is the slot. A resource
belongs to a host, as a volume's attachment does, if its values name the id of that host alone.
`-target` adds all instances of the resources that a target depends on; of a target itself it takes
only the named instances. Therefore each step names hosts, if only one that does not exist
(NO_HOST), and its own plan is checked before it is applied (`strays`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lakehead.storage.errors import RequestRefused, SettingsError

NO_HOST = "none of them"
"""A slot that there is not: a step that targets it leaves all hosts alone."""
REVISION = "lakehead:revision"
"""The tag of a host with the version of its inputs, if no apply changes present hosts."""
_IDLE = {("no-op",), ("read",)}
KEEPS_DATA = frozenset(
    {
        "aws_backup_vault",
        "aws_cloudwatch_log_group",
        "aws_dynamodb_table",
        "aws_ebs_snapshot",
        "aws_ebs_volume",
        "aws_efs_file_system",
        "aws_fsx_openzfs_file_system",
        "aws_glue_catalog_database",
        "aws_glue_catalog_table",
        "aws_kms_external_key",
        "aws_kms_key",
        "aws_kms_replica_key",
        "aws_network_interface",
        "aws_s3_bucket",
        "aws_s3_directory_bucket",
        "aws_s3_object",
        "aws_s3tables_table_bucket",
        "aws_secretsmanager_secret",
        "aws_ssm_parameter",
    }
)
"""Types of resources whose end loses what no apply brings back: records, keys, addresses."""


class Action(Enum):
    """The kinds of steps."""

    REMOVE = "remove"
    PREPARE = "prepare"
    """Everything that hosts may need and that changes none: policies, new volumes, new hosts; and
    what is replaced, since hosts may depend on it, and would bring it along unnamed.
    """
    REPLACE = "replace"
    FINISH = "finish"
    """The rest: a dashboard that names all hosts, resources that are not needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host as Terraform's output `hosts` has it. `node_ids` is empty where it does not say how
    many nodes there are.
    """

    slot: str
    host_id: str
    node_ids: tuple[int, ...] = ()
    revision: str = ""
    """The tag REVISION of an instance that is made now; empty: every difference is in plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A resource that is there or is to be. `slot` is the key of a host; empty: no host."""

    address: str
    slot: str
    actions: tuple[str, ...]
    key: str = ""
    """The key of its instance, which is the slot of many a resource that is no host."""
    keeps_data: bool = False
    """True if its type is one of KEEPS_DATA."""
    revision: str = ""
    """Of what it was made, as its tag REVISION says."""
    deposed: str = ""
    """The key of an object that an apply left behind when it was stopped; empty: none."""
    values: frozenset[str] = frozenset()
    """Every text in what it was."""
    resource_id: str = ""

    @property
    def is_idle(self) -> bool:
        """Return true if the plan does not change it."""
        return self.actions in _IDLE

    @property
    def is_deletion(self) -> bool:
        """Return true if it goes for good."""
        return self.actions == ("delete",)

    @property
    def is_replacement(self) -> bool:
        """Return true if it goes, and another one comes."""
        return len(self.actions) > 1

    @property
    def words(self) -> str:
        """Return what happens to it: `aws_instance.host["a-0"] (delete, create)`."""
        left = f"deposed {self.deposed}: " if self.deposed else ""
        return f"{self.address} ({left}{', '.join(self.actions)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The changes of a plan. `now` and `then` are the hosts before and after it, by slot."""

    changes: tuple[Change, ...]
    now: Mapping[str, Host]
    then: Mapping[str, Host]
    store: str
    changes_outputs: bool = False
    """True if outputs change, such as those of hosts that a step has removed: applies with
    targets leave them as they were.
    """

    @property
    def pending(self) -> list[Change]:
        """Return what happens at all."""
        return [change for change in self.changes if not change.is_idle]

    def outdated(self, then: Mapping[str, Host] | None = None) -> list[str]:
        """Return the addresses of hosts that are there and were made of something else than they
        would be now (`then`: as another plan says it), which an apply does not change.
        """
        wanted = {slot: h.revision for slot, h in (then or self.then).items() if h.revision}
        return [
            change.address
            for change in self.changes
            if change.slot in wanted and change.revision != wanted[change.slot]
            if not (change.is_deletion or change.actions == ("create",))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One apply: `targets` are addresses (none: everything), `slots` the hosts that it touches."""

    action: Action
    slots: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


def read_plan(plan: Mapping[str, Any], resource: str) -> HostPlan:
    """Return what a plan does; `resource` is the hosts' type and name. Raises SettingsError."""
    changes = tuple(_changes(plan, resource))
    before, after = _outputs(plan, "before"), _outputs(plan, "after")
    now = _hosts(before)
    known = now | _hosts(after)  # values that are known after the apply only stay as they were
    kept = {change.slot for change in changes if change.slot and not change.is_deletion}
    return HostPlan(
        changes=changes,
        now=now,
        then={slot: host for slot, host in known.items() if slot in kept},
        store=str(after.get("store") or before.get("store") or ""),
        changes_outputs=any(
            found.get("actions", ["no-op"]) != ["no-op"]
            for found in plan.get("output_changes", {}).values()
        ),
    )


def check_hosts(plan: HostPlan, resource: str) -> None:
    """Raise SettingsError unless a plan has hosts, and says where their nodes are."""
    hosts = [change for change in plan.changes if change.slot]
    if not hosts:
        raise SettingsError(
            f"Terraform knows no hosts {resource} here: give the folder of the root module, or "
            "name the resource with --resource TYPE.NAME"
        )
    for host in hosts:
        if host.slot not in (plan.now if host.is_deletion else plan.then):
            raise SettingsError(
                f"Terraform has no output hosts with {host.slot}: the root module needs "
                'output "hosts" { value = module.lakehead.hosts }, and to be applied with it once'
            )


def plan_steps(plan: HostPlan, *, down: frozenset[str] = frozenset()) -> list[Step]:
    """Return the steps, in order. Hosts that are `down` already come first.

    Removals are one step and the first, with all else that goes, since any other step would take
    volumes of removed hosts along: what is targeted depends on the whole resource.
    """
    hosts = [change for change in plan.pending if change.slot]
    removed = [change for change in hosts if change.is_deletion]
    new = [change for change in hosts if change.actions == ("create",)]
    replaced = [change for change in hosts if not change.is_deletion and change not in new]
    followers = {host.slot: _followers(plan, host) for host in removed + replaced}
    following = {address for addresses in followers.values() for address in addresses}
    steps = []
    if removed:
        going = [change.address for change in plan.pending if change.is_deletion]
        targets = dict.fromkeys([*going, *(one for r in removed for one in followers[r.slot])])
        steps.append(Step(action=Action.REMOVE, slots=_slots(removed), targets=tuple(targets)))
    beside = [
        change.address
        for change in plan.pending
        if not (change.slot or change.is_deletion or change.deposed)
        if change.address not in following and not (change.keeps_data and change.is_replacement)
    ]
    if new or beside:
        targets_new = [change.address for change in new] or [_no_host(plan)]
        prepared = (*targets_new, *beside)
        steps.append(Step(action=Action.PREPARE, slots=_slots(new), targets=prepared))
    for change in sorted(replaced, key=lambda one: (one.slot not in down, one.slot)):
        of_host = (change.address, *followers[change.slot])
        steps.append(Step(action=Action.REPLACE, slots=(change.slot,), targets=of_host))
    targeted = {address for step in steps for address in step.targets}
    if left := tuple(one.address for one in plan.pending if one.address not in targeted):
        steps.append(Step(action=Action.FINISH, targets=left))
    return steps


def check_data(plan: HostPlan, named: Collection[str] = ()) -> None:
    """Raise RequestRefused if a plan deletes a resource that keeps data, and may not.

    A resource that is `named`, by its address, may be deleted. So may one in the slot of a host
    that the same plan removes, since the step waits until its log holds nothing. Of a host that is
    gone already nothing is known. None is replaced by an empty one: a rolling update cannot know
    that its data is elsewhere too.
    """
    if ends := [change.words for change in _data_ends(plan, named)]:
        raise RequestRefused(
            f"Terraform would end what keeps data: {'; '.join(ends)}. Nothing was changed. To keep "
            "it, take back what causes this; to delete it all the same, name each deletion with "
            "--delete ADDRESS; a replacement is for terraform apply, once all nodes are stopped"
        )


def strays(step: Step, plan: HostPlan, named: Collection[str] = ()) -> list[str]:
    """Return what the plan of a step does beyond the step, in words: other hosts, deletions and
    replacements that are not of it, and what keeps data (see `check_data`). Such a plan is not to
    be applied.
    """
    ends = list(_data_ends(plan, named))
    return [
        change.words
        for change in plan.pending
        if (change.slot and change.slot not in step.slots)
        or ((change.is_deletion or change.is_replacement) and change.address not in step.targets)
        or change in ends
    ]


def _data_ends(plan: HostPlan, named: Collection[str]) -> Iterator[Change]:
    removed = {change.slot for change in plan.pending if change.slot and change.is_deletion}
    for change in plan.pending:
        is_due = change.is_deletion and (change.key in removed or change.address in named)
        if change.keeps_data and not is_due and (change.is_deletion or change.is_replacement):
            yield change


def _slots(changes: Sequence[Change]) -> tuple[str, ...]:
    return tuple(sorted(change.slot for change in changes))


def _changes(plan: Mapping[str, Any], resource: str) -> Iterator[Change]:
    for found in plan.get("resource_changes", ()):
        if found.get("mode") != "managed":
            continue
        # The remains of a host after a stopped apply are not the host.
        is_host = f"{found['type']}.{found['name']}" == resource and "deposed" not in found
        if is_host and not isinstance(found.get("index"), str):
            raise SettingsError(
                f"{found['address']} has no slot: hosts are made by for_each over their slots"
            )
        before = found["change"].get("before") or {}
        yield Change(
            address=found["address"],
            slot=found["index"] if is_host else "",
            actions=tuple(found["change"]["actions"]),
            key=str(found.get("index", "")),
            keeps_data=found["type"] in KEEPS_DATA,
            revision=str((before.get("tags") or {}).get(REVISION, "")) if is_host else "",
            deposed=found.get("deposed", ""),
            values=frozenset(_texts(before)),
            resource_id=str(before.get("id") or ""),
        )


def _followers(plan: HostPlan, host: Change) -> list[str]:
    """Return what changes and names this host, and no other one."""
    others = {c.resource_id for c in plan.changes if c.slot and c is not host} - {""}
    return [
        change.address
        for change in plan.pending
        if not change.slot and host.resource_id in change.values and not others & change.values
    ]


def _no_host(plan: HostPlan) -> str:
    host = next(change for change in plan.changes if change.slot)
    return f'{host.address.rpartition("[")[0]}["{NO_HOST}"]'


def _outputs(plan: Mapping[str, Any], moment: str) -> Mapping[str, Any]:
    """Return the outputs; a root that has all of the module's in one output is as good."""
    outputs = {
        name: found.get(moment) or {} for name, found in plan.get("output_changes", {}).items()
    }
    if "hosts" in outputs:
        return outputs
    for value in outputs.values():
        if isinstance(value, dict) and "hosts" in value:
            return value
    return {}


def _hosts(outputs: Mapping[str, Any]) -> dict[str, Host]:
    return {slot: _host(slot, found) for slot, found in (outputs.get("hosts") or {}).items()}


def _host(slot: str, found: Mapping[str, Any]) -> Host:
    if not found.get("host_id"):
        raise SettingsError(f"Terraform's output hosts has no host_id for {slot}")
    first, count = found.get("node_id"), found.get("nodes")
    node_ids: Sequence[int] = ()
    if isinstance(first, int) and isinstance(count, int):
        node_ids = range(first, first + count)
    return Host(
        slot=slot,
        host_id=str(found["host_id"]),
        node_ids=tuple(node_ids),
        revision=str(found.get("revision") or ""),
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
