"""`lakehead start`: run a broker in the foreground until Ctrl-C or SIGTERM.

The flags are the settings of `lakehead.broker.settings`, one each, under Kafka's names; dashes and
underscores are taken for dots (`--message-max-bytes`).
"""

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from lakehead.broker.cli.imports import uncollected
from lakehead.broker.cli.setting_flags import command_with_setting_flags
from lakehead.broker.setting_sources import (
    check_flags,
    load,
    unknown_variables,
    without_effect,
)
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.lifeline import is_supervised
from lakehead.storage.errors import (
    EntryRejected,
    Fenced,
    LakeheadError,
    StoreUnavailable,
    WalHolderEnding,
)

_HELP = """\
Start a broker, until Ctrl-C or SIGTERM.

Without any flag: port 9092 on this machine, data in ./lakehead-data. A line on standard output \
says when clients can connect.

With --nodes N, N brokers run under one supervisor; one that ends is started again, and SIGHUP \
replaces them one after the other.

Each setting is taken from its flag, else from the environment (LAKEHEAD_NUM_PARTITIONS for \
num.partitions), else from the file given by --config, else its default. `lakehead settings list \
WORD` finds settings by a word.
"""


def _start(
    flags: Mapping[str, str | None], config: str | None, *, no_maintain: bool = False
) -> None:
    given = dict(flags)
    if no_maintain:
        given["maintain"] = "false"
    check_flags(given)
    settings = load(given, os.environ, config)
    if ignored := without_effect(config):
        typer.echo(f"lakehead: without effect here: {', '.join(ignored)}", err=True)
    if not is_supervised(os.environ):
        for line in unknown_variables(os.environ):
            typer.echo(f"lakehead: {line}", err=True)
    if settings.nodes == 1 and settings.registry_port < 0:
        _serve(settings)
    else:
        _supervise(settings, given, config)


def _serve(settings: Settings) -> None:
    """Run a node to its end. Of several on this machine, it says which one it is."""
    with uncollected():
        from lakehead.broker.process import run
        from lakehead.broker.supervisor.lifeline import stop_with_supervisor
        from lakehead.broker.supervisor.supervisor import FENCED, UNAVAILABLE

    if not is_supervised(os.environ):
        run(settings, on_ready=lambda address: _announce(address, settings))
        return
    stop_with_supervisor(os.environ)
    try:
        run(settings, on_ready=lambda address: _announce(address, settings))
    except (Fenced, EntryRejected, WalHolderEnding, StoreUnavailable) as error:
        typer.echo(f"lakehead: node {settings.node_id}: {error}", err=True)
        is_store = isinstance(error, StoreUnavailable)
        raise typer.Exit(UNAVAILABLE if is_store else FENCED) from error
    except LakeheadError as error:
        raise LakeheadError(f"node {settings.node_id}: {error}") from error


def _supervise(settings: Settings, flags: Mapping[str, str | None], config: str | None) -> None:
    """Run several nodes to their end."""
    from lakehead.broker.supervisor.placement import node_commands
    from lakehead.broker.supervisor.service import run

    commands = node_commands(settings, flags, config)
    run(
        commands,
        settings,
        on_ready=lambda addresses: _announce(addresses, settings),
        on_registry=lambda address: typer.echo(f"schema registry at {address}"),
    )


def _announce(address: str, settings: Settings) -> None:
    typer.echo(f"lakehead is ready at {address}, data in {settings.store_uri}")


start = command_with_setting_flags(
    _start,
    help_text=_HELP,
    no_maintain=Annotated[
        bool, typer.Option("--no-maintain", help="The same as --maintain false.")
    ],
)
