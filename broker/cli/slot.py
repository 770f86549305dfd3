"""`lakehead slot`: the place of a machine of an auto-scaling group in its cluster."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.ec2.slots import WAIT_S, Slot, has_address, machine_slots
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.setting_sources import ENVIRONMENT_PREFIX

_ADDRESS = f"{ENVIRONMENT_PREFIX}ADVERTISED_HOST"

app = CommandLine(help="Claim a slot for an EC2 Auto Scaling machine.")


@app.callback()
def _group() -> None:
    """Keep `claim` a command of its own."""


@app.command("claim")
def claim(
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the lines there, not to the output."),
    ] = None,
    wait_s: Annotated[
        int,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Seconds to wait for a free slot."),
    ] = int(WAIT_S),
) -> None:
    """Take a free slot of this machine's zone, and print its settings as variables.

    On EC2 only, by the network interfaces with the tags lakehead:bucket, lakehead:cluster,
    lakehead:slot and lakehead:node-id. A machine that has a slot keeps it, without a request to EC2
    if FILE names a slot whose address is here. The variables are read by lakehead start: node.id,
    host.id, broker.rack, advertised.host.
    """
    configure_logs("info")
    if write is not None and (address := kept_address(write)):
        typer.echo(f"the slot in {write} is still this machine's: {address}")
        return
    slot = asyncio.run(machine_slots(wait_s).claim())
    text = "".join(f"{name}={value}\n" for name, value in variables(slot).items())
    if write is None:
        typer.echo(text, nl=False)
        return
    # A reader of the file finds all of it at any moment.
    new = write.with_name(f"{write.name}.new")
    new.write_text(text)
    new.replace(write)
    typer.echo(f"slot {slot.name} of {slot.cluster}: node {slot.node_id} at {slot.address}")


def kept_address(file: Path) -> str:
    """Return the address that a file names, if this machine has it: then it has the slot. Nodes
    can then start again while EC2 does not respond.
    """
    try:
        lines = file.read_text().splitlines()
        values = dict(line.partition("=")[::2] for line in lines)
        address = values.get(_ADDRESS, "")
        return address if address and has_address(address) else ""
    except (OSError, ValueError):
        return ""


def variables(slot: Slot) -> dict[str, str]:
    """Return the settings of a slot, by the names of their variables."""
    return {
        f"{ENVIRONMENT_PREFIX}NODE_ID": str(slot.node_id),
        f"{ENVIRONMENT_PREFIX}HOST_ID": f"{slot.cluster}-{slot.name}",
        f"{ENVIRONMENT_PREFIX}BROKER_RACK": slot.zone_id,
        _ADDRESS: slot.address,
    }
