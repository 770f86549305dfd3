"""`lakehead forget`: remove the records of keys, also those that no object has yet."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.cli.cluster import COMMAND_CONFIG
from lakehead.broker.cli.jobs import JobCall, job_command
from lakehead.lake.jobs.forget import JOB
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.storage.errors import SettingsError

_BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="A broker of the cluster: the ends of partitions are taken from it, instead of "
        "--until.",
    ),
]
_ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=COMMAND_CONFIG,
        help="Settings of a Kafka client (client.properties), for a listener with TLS or SASL.",
    ),
]


def _forget(
    call: JobCall,
    bootstrap_server: _BootstrapOption = "",
    command_config: _ClientConfigOption = None,
) -> None:
    options: ForgetOptions = call.options
    if not bootstrap_server or options.check is not None:
        call.run()
        return
    if options.until:
        raise SettingsError("give --until or --bootstrap-server, not both")
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    ends = KafkaAdmin(bootstrap_server, command_config).end_offsets(options.checked_topic())
    until = ",".join(f"{partition}:{offset}" for partition, offset in sorted(ends.items()))
    replace(call, options=replace(options, until=until)).run()


forget = job_command(JOB, extended_by=_forget)
