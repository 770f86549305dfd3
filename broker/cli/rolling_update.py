"""`lakehead rolling-update`: apply a change of Terraform to hosts, one host after the other."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lakehead.broker.cli.cluster import open_cluster, open_log, run
from lakehead.broker.cli.confirmation import confirm
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.rolling.conductor import Conductor, StepTimes
from lakehead.broker.cli.rolling.host_plan import HostPlan, Step, check_data, check_hosts, read_plan
from lakehead.broker.cli.rolling.members import MIN_READY_S, Members, MinReadyOption, Waits
from lakehead.broker.cli.rolling.terraform import Terraform
from lakehead.storage.errors import SettingsError

_TIMEOUT_S = 900
_RESOURCE = "aws_instance.host"


FolderArgument = Annotated[
    Path, typer.Argument(metavar="[FOLDER]", help="The root module.", show_default=False)
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--path",
        "-p",
        metavar="PATH",
        envvar="LAKEHEAD_PATH",
        help="The cluster's store. [default: Terraform's output store]",
        show_default=False,
    ),
]
VariablesOption = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="A variable, as terraform plan takes it."),
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--var-file", metavar="FILE", help="A file of variables, likewise."),
]
ResourceOption = Annotated[
    str, typer.Option("--resource", metavar="TYPE.NAME", help="The resource of the hosts.")
]
ProgramOption = Annotated[
    str, typer.Option("--terraform", metavar="PROGRAM", help="Terraform, or OpenTofu.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="To wait for a host.", min=1)
]
DeleteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--delete",
        metavar="ADDRESS",
        help="A resource that keeps data, such as a volume, which may be deleted.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the steps, change nothing.")]
ApproveOption = Annotated[
    bool,
    typer.Option("--auto-approve", "--yes", help="Start the first step without a confirmation."),
]


def rolling_update(
    folder: FolderArgument = Path(),
    path: StoreOption = "",
    dry_run: DryRunOption = False,
    auto_approve: ApproveOption = False,
    variables: VariablesOption = None,
    variable_files: FilesOption = None,
    resource: ResourceOption = _RESOURCE,
    program: ProgramOption = "terraform",
    timeout_s: TimeoutOption = _TIMEOUT_S,
    min_ready_s: MinReadyOption = MIN_READY_S,
    delete: DeleteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply a Terraform change to one host after the other.

    terraform apply would replace all hosts that differ at once. This drains a host's nodes, applies
    that host alone, waits until it serves and every partition has a leader, and goes on to the
    next. Hosts that are to go are drained, removed and unregistered first; new ones come before any
    is replaced. Whatever else differs is applied with them or at the end.

    A step that would touch more than it shows is not applied. A resource that keeps data, such as a
    volume of a host that stays, a bucket or a key, is deleted only if --delete names it. It is
    never replaced.

    It stops at the first failure, and Ctrl-C stops it; run again, it goes on. Two runs at once do
    not harm: Terraform locks its state, and no host is drained while another is down.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: there is no such folder")
    options = [f"-var={one}" for one in variables or ()]
    options += [f"-var-file={one.absolute()}" for one in variable_files or ()]

    def approved(steps: list[Step]) -> bool:
        if dry_run or not as_json:
            show_rows([_step_row(step) for step in steps], _STEP_COLUMNS, as_json)
        if not dry_run:
            confirm("Apply these steps?", yes=auto_approve)
        return not dry_run

    figures: list[StepTimes] = []
    with tempfile.TemporaryDirectory(prefix="lakehead-plan-") as scratch:
        terraform = Terraform(program, folder, Path(scratch), options)
        try:
            named = frozenset(delete or ())
            waits = Waits(timeout_s=timeout_s, min_ready_s=min_ready_s)
            run(_update(terraform, path, resource, named, waits, approved, figures))
        finally:
            if figures:
                show_rows([_figures_row(one) for one in figures], _FIGURE_COLUMNS, as_json)


async def _update(
    terraform: Terraform,
    path: str,
    resource: str,
    named: frozenset[str],
    waits: Waits,
    approved: Callable[[list[Step]], bool],
    done: list[StepTimes],
) -> None:
    """Do what the user approves of; each step's figures are in `done` once it is."""
    console = _Console()
    with _cancelled_by_sigterm():
        with console.busy("terraform plan"):
            saved = await terraform.plan()
            plan = read_plan(saved.content, resource)
            if outdated := plan.outdated():
                saved = await terraform.plan(replaced=outdated)
                plan = read_plan(saved.content, resource)
        check_hosts(plan, resource)
        check_data(plan, named)
        async with _members(path or _store(plan), waits) as members:
            conductor = Conductor(
                terraform,
                members,
                plan,
                resource=resource,
                named=named,
                say=console.say,
                note=console.note,
            )
            steps = conductor.steps()
            if steps and not approved(steps):
                return
            with console.busy("looking at the hosts"):
                await conductor.run(done)
            console.note("all hosts are as Terraform wants them, and serve")


@asynccontextmanager
async def _members(path: str, waits: Waits) -> AsyncIterator[Members]:
    store = open_cluster(path)
    try:
        log = await open_log(store, writer="rolling-update")
        members = Members(log, waits)
        async with members.following():
            yield members
    finally:
        await store.close()


def _store(plan: HostPlan) -> str:
    if not plan.store:
        raise SettingsError(
            "Terraform has no output store: name the cluster's place with --path s3://..., or add "
            'output "store" { value = module.lakehead.store }'
        )
    return plan.store


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class _Console:
    """Says what goes on, on standard error: on a terminal in one line that changes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._status: Any = None
        self._last = ""

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Show that something is going on."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(words) as self._status:
            yield
        self._status = None

    def say(self, words: str) -> None:
        """Show what is going on now."""
        if words == self._last:
            return
        self._last = words
        if self._status is not None:
            self._status.update(words)
        else:
            self.note(words)

    def note(self, words: str) -> None:
        """Show what is to stay on the screen."""
        self._console.print(words, soft_wrap=True)


_STEP_COLUMNS = {"step": "STEP", "hosts": "HOSTS", "resources": "RESOURCES"}
_FIGURE_COLUMNS = {
    "step": "STEP",
    "hosts": "HOSTS",
    "drain_s": "DRAIN (s)",
    "apply_s": "APPLY (s)",
    "back_s": "BACK (s)",
    "pause_s": "UNLED (s)",
}


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "step": step.action.value,
        "hosts": ", ".join(step.slots),
        "resources": ", ".join(step.targets),
    }


def _figures_row(figures: StepTimes) -> dict[str, Any]:
    return {
        "step": figures.action.value,
        "hosts": ", ".join(figures.slots),
        "drain_s": round(figures.drain_s, 1),
        "apply_s": round(figures.apply_s, 1),
        "back_s": round(figures.back_s, 1),
        "pause_s": round(figures.pause_s, 1),
    }
