"""What machines are put through, inside the network that `python -m tests.boot` makes for them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.boot.cloud import NODES, Cloud, open_network, running_cloud
from tests.boot.container import open_bridge
from tests.boot.hosts import KAFKA_PORT, Hosts
from tests.boot.image import image
from tests.boot.machine import Machine, MachineFailed, checked, until, wait_for_shell
from tests.boot.metadata import serve_metadata
from tests.boot.records import Records, RecordsFailed

WAIT_S = 1800.0
"""For anything: a guest is emulated, and the machine below it has other work."""
RECORDS = 2000


@dataclass(slots=True)
class Steps:
    """What was done, and how long it took."""

    taken: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step and say it when it is done."""
        began = time.monotonic()
        yield
        self.taken.append((name, time.monotonic() - began))
        print(f"{self.taken[-1][1]:6.0f} s  {name}", flush=True)


def boots_and_installs(machine: Machine, steps: Steps) -> None:
    with steps.step("kernel and first services"):
        wait_for_shell(machine, WAIT_S)
    with steps.step("cloud-init"):
        until(machine, "cloud-init status | grep -qE 'done|error|degraded'", WAIT_S)
    result = json.loads(checked(machine, "cat /run/cloud-init/result.json"))["v1"]
    if result["errors"] or result["datasource"] is None:
        raise MachineFailed(f"cloud-init: {result}")
    with steps.step("installing the package"):
        until(machine, "systemctl is-active lakehead", WAIT_S)


def wait_for_takeovers(machine: Machine, count: int) -> None:
    """Return when nodes of this machine have recovered so many logs, with records in the last."""
    said = "journalctl --unit lakehead | grep node_recovered"
    until(machine, f"test $({said} | wc -l) -ge {count}", WAIT_S)
    if "found=0" in checked(machine, said).splitlines()[-1]:
        raise MachineFailed("a log was taken over in which there was nothing")


def a_node_hangs_and_its_neighbour_takes_over(
    machine: Machine, records: Records, steps: Steps
) -> None:
    records.write(RECORDS)
    main = checked(machine, "systemctl show --property MainPID --value lakehead")
    node = checked(machine, f"pgrep --parent {main} --full node.id=").split()[0]
    with steps.step("a node hangs, its neighbour has its slice"):
        checked(machine, f"kill -STOP {node}")
        wait_for_takeovers(machine, 1)
        records.check()
    with steps.step("the node is back"):
        machine.command(f"kill -CONT {node}")  # where it was not ended by the takeover
        records.wait_for_brokers(NODES)


def stops_cleanly(machine: Machine, steps: Steps) -> None:
    with steps.step("systemctl stop"):
        checked(machine, "systemctl stop lakehead")
    said = checked(machine, "systemctl show --property Result,ExecMainStatus lakehead")
    if sorted(said.split()) != ["ExecMainStatus=0", "Result=success"]:
        raise MachineFailed(f"the stop was not clean: {said}")


def comes_back(machine: Machine, records: Records, steps: Steps) -> None:
    boot = "systemctl show --property UserspaceTimestampMonotonic --value"
    before = checked(machine, boot)
    with steps.step("boots anew, until all nodes answer"):
        machine.command("systemctl --no-block reboot")
        until_it_ran(machine, f'now=$({boot}) && test -n "$now" && test "$now" != "{before}"')
        records.wait_for_brokers(NODES)
    with steps.step("records are all there"):
        records.write(RECORDS)
        records.check()


def until_it_ran(machine: Machine, line: str) -> None:
    """Run a line until it succeeds, on a machine that is away for a while. Raises MachineFailed."""
    deadline = time.monotonic() + WAIT_S
    while True:
        wait_for_shell(machine, WAIT_S)
        try:
            if machine.command(line)[0] == 0:
                return
        except MachineFailed:
            pass
        if time.monotonic() > deadline:
            raise MachineFailed(f"{line}: not in {WAIT_S:.0f} s")


def a_machine_dies_and_another_takes_over(
    machine: Machine, other: Machine, records: Records, steps: Steps
) -> None:
    records.write(RECORDS)
    with steps.step("a machine dies, another has the slices of its nodes"):
        machine.kill()
        wait_for_takeovers(other, 1)  # a node that led nothing has no log to recover
        records.check()
    with steps.step("records are written and all there"):
        records.write(RECORDS)
        records.check()


def scenario(hosts: Hosts, cloud: Cloud, steps: Steps) -> None:
    first, second = list(cloud.instances)[:2]
    machine = hosts.boot(first)
    running = [machine]
    records = Records(f"{cloud.instances[first].address}:{KAFKA_PORT}")
    try:
        boots_and_installs(machine, steps)
        with steps.step("nodes answer Metadata, records are written and read"):
            records.wait_for_brokers(NODES)
            records.create_topic()
            records.write(RECORDS)
            records.check()
        a_node_hangs_and_its_neighbour_takes_over(machine, records, steps)
        stops_cleanly(machine, steps)
        comes_back(machine, records, steps)
        if hosts.in_containers:
            other = hosts.boot(second)
            running.append(other)
            with steps.step("a second machine, from boot to nodes"):
                records.wait_for_brokers(2 * NODES)
            survivors = Records(f"{cloud.instances[second].address}:{KAFKA_PORT}", after=records)
            a_machine_dies_and_another_takes_over(machine, other, survivors, steps)
    except (MachineFailed, RecordsFailed):
        for one in running:
            show(one)
        raise


def show(machine: Machine) -> None:
    """Print what helps to find out what went wrong."""
    for line in (
        "cloud-init status --long",
        "systemctl status --no-pager lakehead",
        "journalctl --no-pager --unit lakehead --lines 40",
        "journalctl --no-pager --unit systemd-udevd --lines 10",
        "id lakehead; ls -l /dev/nvme*",
    ):
        try:
            print(machine.command(line, timeout_s=60.0)[1], flush=True)
        except MachineFailed as error:
            print(error)


def main(folder: Path, *, in_containers: bool) -> int:
    """Status 1 if a machine did not do what it should have. `folder` has the wheels."""
    open_network()
    open_bridge()
    steps = Steps()
    example, wal_mode = ("multi-az-object-wal", "object") if in_containers else ("minimal", "gp3")
    with ExitStack() as stack:
        with steps.step(f"terraform apply of {example}; S3 and EC2 answer"):
            cloud = stack.enter_context(running_cloud(folder, example, wal_mode))
        hosts = Hosts(
            image=image(), cloud=cloud, folder=folder, stack=stack, in_containers=in_containers
        )
        stack.enter_context(serve_metadata(hosts.metadata))
        try:
            scenario(hosts, cloud, steps)
        except (MachineFailed, RecordsFailed) as error:
            print(f"boot-test: failed: {error}", file=sys.stderr)
            return 1
    print(f"boot-test: passed in {sum(seconds for _, seconds in steps.taken):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), in_containers="container" in sys.argv[2:]))
