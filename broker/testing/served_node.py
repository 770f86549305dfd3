"""A node that does what its standard input says.

Lines out: `ready ADDRESS`, and `done` or `error WHY` for each line in: `upload`, `stop`. When the
input ends without `stop`, the tests are gone without a word, and so is the process at once.
"""

import asyncio
import json
import sys

import uvloop

from lakehead.broker.node import Node, start_node
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.setting_sources import load
from lakehead.broker.settings import Settings
from lakehead.storage.errors import LakeheadError
from lakehead.storage.plain_text import address_text


def run(given: str) -> int:
    """Run a node with settings by name as JSON; return the exit status."""
    try:
        settings = load(json.loads(given))
        configure_logs(settings.log_level, settings.node_id, log_format=settings.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings))
    except LakeheadError as error:
        _say(f"error {error}")
        return 1


async def _serve(settings: Settings) -> int:
    node = await start_node(settings)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    failed = node.scope.spawn(node.wait_failed(), name="wait for failure")
    failed.add_done_callback(lambda _: commands.feed_eof())
    _say(f"ready {address_text(node.advertised_host, node.advertised_port)}")
    while line := await commands.readline():
        if line == b"stop\n":
            await node.close()
            _say("done")
            return 0
        await _upload(node)
    if node.failure is not None:
        sys.stderr.write(f"the broker cannot go on: {node.failure}\n")
    return 1


async def _upload(node: Node) -> None:
    try:
        await node.engine.upload_now()
    except LakeheadError as error:
        _say(f"error {error}")
    else:
        _say("done")


def _say(line: str) -> None:
    sys.stdout.write(f"{' '.join(line.splitlines())}\n")
    sys.stdout.flush()
