"""From Terraform's plan to steps, and what of the cluster's state says that a host may go."""

import re
from typing import Any

import pytest
from immutables import Map

from lakehead.broker.cli.rolling.host_plan import (
    KEEPS_DATA,
    NO_HOST,
    Action,
    Host,
    HostPlan,
    Step,
    check_data,
    check_hosts,
    plan_steps,
    read_plan,
    strays,
)
from lakehead.broker.cli.rolling.host_state import (
    Expected,
    HostDown,
    PauseWatch,
    amiss,
    drains,
    held,
    leading,
    not_gone,
    unwell,
)
from lakehead.storage.errors import RequestRefused, SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState
from lakehead.storage.metadata.table import Table

RESOURCE = "aws_instance.host"
BROKERS = "module.lakehead.module.brokers[0]"
REPLACE, NOTHING = ["delete", "create"], ["no-op"]


def change(address: str, actions: list[str], *, slot: str = "", **before: Any) -> dict[str, Any]:
    kind, name = address.rpartition("]")[0].rpartition("[")[0].split(".")[-2:]
    found = {"address": address, "mode": "managed", "type": kind, "name": name}
    found["change"] = {"actions": actions, "before": before or None}  # type: ignore[assignment]
    return found | {"index": slot or address.split('"')[1]}


def instance(slot: str, actions: list[str]) -> dict[str, Any]:
    before: dict[str, Any] = {"id": f"i-{slot}", "tags": {"lakehead:slot": slot}}
    before = {} if actions == ["create"] else before
    return change(f'{BROKERS}.aws_instance.host["{slot}"]', actions, **before)


def attachment(volume: str, host: str, actions: list[str]) -> dict[str, Any]:
    address = f'module.wal.aws_volume_attachment.wal["{volume}-on-{host}"]'
    return change(address, actions, id=f"vai-{volume}-{host}", instance_id=f"i-{host}")


def planned(*changes: dict[str, Any], slots: str = "a-0 a-1", then: str = "") -> dict[str, Any]:
    def outputs(names: str) -> dict[str, Any]:
        hosts = {
            s: {"host_id": f"c-{s}", "node_id": 10 * n, "nodes": 2}
            for n, s in enumerate(names.split())
        }
        return {"hosts": hosts, "store": "s3://lake/c"}

    cluster = {"before": outputs(slots), "after": outputs(then or slots), "actions": ["no-op"]}
    return {"resource_changes": list(changes), "output_changes": {"cluster": cluster}}


def test_each_host_goes_with_what_names_it_and_no_other() -> None:
    plan = read_plan(
        planned(
            instance("a-1", REPLACE),
            instance("a-0", REPLACE),
            attachment("a-0", "a-1", REPLACE),
            attachment("a-1", "a-0", REPLACE),
            change('aws_ebs_volume.wal["a-0"]', NOTHING, id="vol-0"),
            change('aws_dashboard.all["x"]', ["update"], body=["i-a-0", "i-a-1"]),
            change('aws_iam_role_policy.broker["x"]', ["update"], policy="{}"),
        ),
        RESOURCE,
    )
    assert plan.store == "s3://lake/c"
    assert plan.then["a-1"] == Host(slot="a-1", host_id="c-a-1", node_ids=(10, 11))
    beside = ('aws_dashboard.all["x"]', 'aws_iam_role_policy.broker["x"]')
    hosts = [f'{BROKERS}.aws_instance.host["a-{n}"]' for n in range(2)]
    steps = [
        Step(action=Action.PREPARE, targets=(f'{BROKERS}.aws_instance.host["{NO_HOST}"]', *beside)),
        *(
            Step(
                action=Action.REPLACE,
                slots=(f"a-{n}",),
                targets=(hosts[n], f'module.wal.aws_volume_attachment.wal["a-{1 - n}-on-a-{n}"]'),
            )
            for n in range(2)
        ),
    ]
    assert plan_steps(plan) == steps
    down_first = plan_steps(plan, down=frozenset({"a-1"}))
    assert [step.slots for step in down_first] == [(), ("a-1",), ("a-0",)]


def test_hosts_go_before_all_else_and_come_before_any_is_replaced() -> None:
    plan = read_plan(
        planned(
            instance("a-0", ["update"]),
            instance("a-1", NOTHING),
            instance("a-2", ["delete"]),
            instance("a-3", ["delete"]),
            instance("b-0", ["create"]),
            attachment("a-1", "a-2", ["delete"]),
            change('aws_ebs_volume.wal["b-0"]', ["create"]),
            change('aws_ebs_volume.wal["a-2"]', ["delete"], id="vol-2"),
            attachment("a-2", "a-1", ["delete"]),
            slots="a-0 a-1 a-2 a-3",
            then="a-0 a-1 b-0",
        ),
        RESOURCE,
    )
    steps = plan_steps(plan)
    assert [(step.action, step.slots) for step in steps] == [
        (Action.REMOVE, ("a-2", "a-3")),
        (Action.PREPARE, ("b-0",)),
        (Action.REPLACE, ("a-0",)),
    ]
    assert set(steps[0].targets[2:]) == {
        'module.wal.aws_volume_attachment.wal["a-1-on-a-2"]',
        'module.wal.aws_volume_attachment.wal["a-2-on-a-1"]',
        'aws_ebs_volume.wal["a-2"]',
    }
    assert steps[1].targets[1:] == ('aws_ebs_volume.wal["b-0"]',)


STEP = Step(action=Action.REPLACE, slots=("a-0",), targets=(f'{BROKERS}.aws_instance.host["a-0"]',))
MINE, OTHER = instance("a-0", REPLACE), instance("a-1", NOTHING)


def beyond(*changes: dict[str, Any], of: Step = STEP, named: tuple[str, ...] = ()) -> list[str]:
    return strays(of, read_plan(planned(*changes), RESOURCE), named)


def test_a_plan_that_touches_another_host_is_not_applied() -> None:
    assert beyond(MINE, OTHER) == []
    assert beyond(MINE, instance("a-1", ["update"])) == [
        f'{BROKERS}.aws_instance.host["a-1"] (update)'
    ]
    removal = Step(action=Action.REMOVE, slots=("a-1",), targets=('aws_ebs_volume.wal["a-1"]',))
    assert beyond(instance("a-0", ["delete"]), of=removal) != []


@pytest.mark.parametrize("actions", [["delete"], REPLACE, ["create", "delete"]])
@pytest.mark.parametrize("kind", sorted(KEEPS_DATA | {"aws_iam_role", "aws_security_group"}))
def test_no_step_deletes_or_replaces_what_it_does_not_show(kind: str, actions: list[str]) -> None:
    beside = change(f'{kind}.this["a-1"]', actions, id="x")
    line = f'{kind}.this["a-1"] ({", ".join(actions)})'
    assert beyond(MINE, OTHER, beside) == [line]
    for action in Action:
        assert beyond(beside, of=Step(action=action, slots=("a-0", "a-1"))) == [line]


@pytest.mark.parametrize("actions", [["delete"], REPLACE, ["create", "delete"]])
@pytest.mark.parametrize("kind", sorted(KEEPS_DATA))
def test_what_keeps_data_stops_the_run_before_its_first_step(kind: str, actions: list[str]) -> None:
    address = f'{kind}.this["a-1"]'
    plan = read_plan(planned(MINE, OTHER, change(address, actions, id="x")), RESOURCE)
    with pytest.raises(RequestRefused, match=re.escape(f"{address} ({', '.join(actions)})")):
        check_data(plan)
    if actions == ["delete"]:
        check_data(plan, [address])
        (*_, finish) = plan_steps(plan)
        assert finish == Step(action=Action.FINISH, targets=(address,))
        assert strays(finish, plan, [address])[1:] == [], "but for the host, it is as it is shown"
    else:
        with pytest.raises(RequestRefused, match="once all nodes are stopped"):
            check_data(plan, [address])


def test_a_new_key_for_volumes_and_hosts_is_not_taken_for_a_change_of_hosts() -> None:
    key = change('module.storage.aws_kms_key.this["0"]', ["delete"], id="key")
    volumes = [change(f'aws_ebs_volume.wal["a-{n}"]', REPLACE, id=f"vol-{n}") for n in range(2)]
    hosts = [instance(f"a-{n}", REPLACE) for n in range(2)]
    plan = read_plan(planned(*hosts, *volumes, key), RESOURCE)
    with pytest.raises(RequestRefused) as refused:
        check_data(plan)
    for address in ('wal["a-0"] (', 'wal["a-1"] (', 'aws_kms_key.this["0"] (delete)'):
        assert address in str(refused.value)


def test_a_removed_host_takes_its_volume_along_and_no_other() -> None:
    gone, volume = instance("a-1", ["delete"]), 'aws_ebs_volume.wal["a-1"]'
    mine = change(volume, ["delete"], id="vol-1")
    other = change('aws_ebs_volume.wal["a-0"]', ["delete"], id="vol-0")
    plan = read_plan(planned(gone, mine, then="a-0"), RESOURCE)
    check_data(plan)
    (removal,) = plan_steps(plan)
    assert strays(removal, plan) == []
    assert beyond(gone, mine, other, of=removal) == ['aws_ebs_volume.wal["a-0"] (delete)']
    assert beyond(gone, change(volume, REPLACE, id="vol-1"), of=removal) != []


def test_a_host_that_is_down_keeps_its_log() -> None:
    """One that EC2 has ended is in no plan any more, and so no step waits for its log."""
    volume = change('aws_ebs_volume.wal["a-1"]', ["delete"], id="vol-1")
    plan = read_plan(planned(instance("a-0", NOTHING), volume, then="a-0"), RESOURCE)
    with pytest.raises(RequestRefused, match="--delete ADDRESS"):
        check_data(plan)
    assert strays(plan_steps(plan)[0], plan) == ['aws_ebs_volume.wal["a-1"] (delete)']


def test_what_a_stopped_apply_left_behind_is_looked_at_too() -> None:
    left = change('aws_ebs_volume.wal["a-0"]', ["delete"], id="vol-9") | {"deposed": "00ab"}
    line = 'aws_ebs_volume.wal["a-0"] (deposed 00ab: delete)'
    assert beyond(MINE, left) == [line]
    host = instance("a-1", ["delete"]) | {"deposed": "00ab"}
    plan = read_plan(planned(MINE, OTHER, host), RESOURCE)
    assert [(step.action, step.slots) for step in plan_steps(plan)] == [
        (Action.REPLACE, ("a-0",)),
        (Action.FINISH, ()),
    ]
    assert beyond(MINE, host) == [f'{BROKERS}.aws_instance.host["a-1"] (deposed 00ab: delete)']


def test_what_hosts_depend_on_is_replaced_by_a_step_that_shows_it() -> None:
    image = change('terraform_data.ami["x"]', REPLACE, id="ami")
    plan = read_plan(planned(MINE, OTHER, image), RESOURCE)
    prepare, replace = plan_steps(plan)
    assert prepare.action is Action.PREPARE
    assert 'terraform_data.ami["x"]' in prepare.targets
    assert beyond(image, OTHER, of=prepare) == []
    assert replace == STEP


def test_a_deletion_of_no_data_is_done_at_the_end() -> None:
    going = change('aws_volume.old["x"]', ["delete"], id="vol-x")
    finish = plan_steps(read_plan(planned(instance("a-0", NOTHING), going), RESOURCE))
    assert finish == [Step(action=Action.FINISH, targets=('aws_volume.old["x"]',))]
    assert beyond(going, of=finish[0]) == []
    volume = change('aws_ebs_volume.wal["a-1"]', ["delete"], id="vol-1")
    assert beyond(going, volume, of=finish[0]) == ['aws_ebs_volume.wal["a-1"] (delete)']


def test_outputs_of_hosts_that_are_gone_are_left_to_be_applied() -> None:
    """bootstrap_servers would name a removed host until somebody applies."""
    found = planned(instance("a-0", NOTHING))
    assert not read_plan(found, RESOURCE).changes_outputs
    found["output_changes"]["cluster"]["actions"] = ["no-op"]
    assert not read_plan(found, RESOURCE).changes_outputs
    found["output_changes"]["cluster"]["actions"] = ["update"]
    left = read_plan(found, RESOURCE)
    assert (left.pending, left.changes_outputs) == ([], True)


def test_nothing_to_do_is_no_step_and_what_is_missing_is_said() -> None:
    assert plan_steps(read_plan(planned(instance("a-0", NOTHING)), RESOURCE)) == []
    with pytest.raises(SettingsError, match="knows no hosts aws_instance"):
        check_hosts(read_plan(planned(), RESOURCE), RESOURCE)
    told_later = planned(instance("a-0", REPLACE), instance("a-1", NOTHING))
    told_later["output_changes"]["cluster"]["after"] = None
    check_hosts(read_plan(told_later, RESOURCE), RESOURCE)
    assert read_plan(told_later, RESOURCE).then.keys() == {"a-0", "a-1"}
    without = planned(instance("a-0", REPLACE)) | {"output_changes": {}}
    with pytest.raises(SettingsError, match="no output hosts with a-0"):
        check_hosts(read_plan(without, RESOURCE), RESOURCE)


A, B = (Host(slot=s, host_id=f"c-{s}", node_ids=ids) for s, ids in [("a", (0, 1)), ("b", (2, 3))])
BOTH = {host.slot: Expected(host=host) for host in (A, B)}


def node(node_id: int, *, is_fenced: bool = False, is_draining: bool = False) -> NodeState:
    host = A if node_id in A.node_ids else B
    return NodeState(
        node_id=node_id,
        epoch=1,
        incarnation="i",
        host="h",
        port=1,
        rack=None,
        host_id=host.host_id,
        is_fenced=is_fenced,
        is_draining=is_draining,
    )


def state(
    *nodes: NodeState, leaders: tuple[int, ...] = (2,), is_open: bool = True
) -> MetadataImage:
    streams = Table[int, StreamState]()
    for n, who in enumerate(leaders):
        stream = StreamState(
            stream_id=n, topic_id="t", partition=n, epoch=0, node_id=who, is_open=is_open
        )
        streams = streams.set(n, stream)
    return MetadataImage(nodes=Map({n.node_id: n for n in nodes}), streams=streams)


DRAINED = [node(0, is_draining=True), node(1, is_draining=True), node(2), node(3)]


def test_no_host_is_drained_unless_all_others_are_well() -> None:
    well = state(*map(node, range(4)), leaders=(0, 2))
    assert [(r.node_id, r.is_draining) for r in drains(well, BOTH, [A])] == [(0, True), (1, True)]
    assert drains(state(*DRAINED, leaders=(0, 2)), BOTH, [A]) == [], "a run before has begun it"
    for other, line in [
        (node(3, is_fenced=True), "node 3 of b is down"),
        (node(3, is_draining=True), "lakehead drain 3 --undo"),
    ]:
        with pytest.raises(HostDown, match=line):
            drains(state(*map(node, range(3)), other), BOTH, [A])
    with pytest.raises(HostDown, match="node 3 of b has not registered"):
        drains(state(*map(node, range(3))), BOTH, [A])
    with pytest.raises(HostDown, match="1 partition without a leader"):
        drains(state(*map(node, range(4)), is_open=False), BOTH, [A])
    with pytest.raises(HostDown, match="without a, b no node is left to lead"):
        drains(well, BOTH, [A, B])


def test_a_host_that_is_down_may_be_replaced_and_is_not_removed_with_what_its_log_holds() -> None:
    dead = [node(0, is_fenced=True), node(1, is_fenced=True), node(2), node(3)]
    waiting = state(*dead, leaders=(0, 2))
    assert unwell(waiting, BOTH, [A]) == ""
    assert drains(waiting, BOTH, [A]) == []
    assert leading(waiting, [A]) == ""
    assert "its log holds what was not uploaded of 1 partition" in held(waiting, [A])
    assert held(state(*dead), [A]) == ""
    assert not_gone(state(*dead), [A]) == ""


def test_a_host_that_leads_or_may_again_is_not_removed() -> None:
    assert held(state(*DRAINED, leaders=(1, 1)), [A]) == "node 1 leads 2 partitions"
    assert "it started again" in held(state(*map(node, range(4))), [A])
    assert not_gone(state(*DRAINED), [A]) == "node 0 is still live"


def test_before_a_host_is_changed_it_need_not_have_the_nodes_that_it_will_have() -> None:
    one = state(node(0), *map(node, (2, 3)))
    assert "node 1 of a has not registered" in amiss(one, Expected(host=A))
    assert amiss(one, Expected(host=A, is_settled=False)) == ""
    assert "no node of a" in amiss(state(), Expected(host=A, is_settled=False))


def test_pauses_are_as_long_as_a_partition_is_seen_without_a_leader() -> None:
    watch = PauseWatch()
    led, unled = state(node(2), leaders=(2, 2)), state(node(2), leaders=(2, 9))
    for now, seen in enumerate([led, unled, unled, led, unled]):
        watch.look(seen, float(now))
    assert watch.longest_s == 1.0


def made_of(slot: str, revision: str, actions: list[str] = NOTHING) -> dict[str, Any]:
    before: dict[str, Any] = {"id": f"i-{slot}", "tags": {"lakehead:revision": revision}}
    return change(f'{BROKERS}.aws_instance.host["{slot}"]', actions, **before)


def wanting(revision: str, *changes: dict[str, Any], slots: str = "a-0 a-1") -> HostPlan:
    found = planned(*changes, slots=slots)
    for host in found["output_changes"]["cluster"]["after"]["hosts"].values():
        host["revision"] = revision
    return read_plan(found, RESOURCE)


def test_hosts_that_no_apply_changes_are_found_by_what_they_were_made_of() -> None:
    plan = wanting("new", made_of("a-0", "old"), made_of("a-1", "new"))
    assert plan.pending == []
    assert plan.outdated() == [f'{BROKERS}.aws_instance.host["a-0"]']
    untagged = wanting("new", made_of("a-0", ""), made_of("a-1", "new"))
    assert untagged.outdated() == plan.outdated(), "made before there was such a tag"
    of_step = wanting("", made_of("a-0", "new"), made_of("a-1", "old"))
    assert of_step.outdated() == [], "a root that does not say it has plans that do"
    assert of_step.outdated(plan.then) == [f'{BROKERS}.aws_instance.host["a-1"]']


def test_hosts_that_come_or_go_are_not_replaced_besides() -> None:
    coming = instance("a-0", ["create"])
    plan = wanting("new", coming, made_of("a-1", "old", ["delete"]))
    assert plan.outdated() == []
