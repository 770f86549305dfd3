"""`lakehead rebuild-catalog`: the job `rebuild_catalog` as a command. Before metadata that can be
read are replaced, it looks for nodes that run by them.
"""

from typing import Annotated

import typer

from lakehead.broker.cli.cluster import open_at, read_state, run
from lakehead.broker.cli.jobs import JobCall, job_command
from lakehead.broker.cli.node_network import CommandConfigOption
from lakehead.broker.cli.nodes import responding_node
from lakehead.storage.errors import LakeheadError, RequestRefused
from lakehead.storage.jobs.rebuild_catalog import JOB


def _rebuild(
    call: JobCall,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --replace: go on though a node responds, of the cluster that this one was "
            "copied from.",
        ),
    ] = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    if call.options.replace and not call.dry_run and not force:
        run(_refuse_nodes(call.store))
    call.run()


async def _refuse_nodes(uri: str) -> None:
    """Raise RequestRefused if a node of the cluster responds: what it acknowledges meanwhile would
    be in neither catalog.
    """
    store = open_at(uri)
    try:
        state = await read_state(store)
    except LakeheadError:
        return  # its metadata cannot be read: that is what a rebuild is for
    finally:
        await store.close()
    if found := await responding_node(state):
        raise RequestRefused(f"{found}: stop every node of {uri} first, then run this again")


rebuild_catalog = job_command(JOB, extended_by=_rebuild)
