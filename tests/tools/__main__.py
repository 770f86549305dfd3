"""`make tools`: Kafka's command-line tools on Kafka and on Lakehead, then `docs/kafka-tools.md`.

Ends with status 1 if a tool says something else of Lakehead than of Kafka and no reason is known.
Needs a JDK 17 and Kafka's jars (`bench.apache_kafka`).
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from tests.tools import group_calls, topic_calls
from tests.tools.barrier import Barrier
from tests.tools.comparison import DIFFERENT, Compared
from tests.tools.differences import KNOWN
from tests.tools.one_jvm import OneJvm, Ran
from tests.tools.scenes import SCENES
from tests.tools.tool_page import write

CALLS = (*topic_calls.BEFORE, *group_calls.CALLS, *topic_calls.AFTER)
PROFILE = ("--node.id", "1", "--num.partitions", "4", "--group.initial.rebalance.delay.ms", "0")
"""What the Kafka that we start has too."""


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools", description=__doc__)
    parser.add_argument("--no-page", action="store_true", help="only say what differs")
    parser.add_argument("--kept", type=Path, help="file of what was said: made, or used if there")
    given = parser.parse_args()
    compared = _compared(given.kept)
    different = [one for one in compared if one.verdict == DIFFERENT]
    for one in different:
        print(f"\n{one.call.line}", *one.changes, sep="\n  ")
    seen = {id(known) for one in compared for known in one.explaining}
    for known in KNOWN:
        if id(known) not in seen:
            print(f"No difference any more: {known.calls}: {known.reason}")
    print(f"{len(compared)} calls, {len(different)} differ without a reason")
    if not given.no_page:
        print(f"The page: {write(compared)}")
    sys.exit(bool(different))


def _compared(kept: Path | None) -> list[Compared]:
    if kept is not None and kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=list[Compared])
    with tempfile.TemporaryDirectory(prefix="tools-") as name:
        compared = _compare(Path(name))
    if kept is not None:
        kept.write_bytes(msgspec.json.encode(compared))
    return compared


def _compare(folder: Path) -> list[Compared]:
    """Make all calls on both sides, the sides beside each other."""
    theirs, ours = folder / "kafka", folder / "lakehead"
    for side in (theirs, ours):
        side.mkdir()
    servers = (kafka_server(theirs), lakehead_server(ours, *PROFILE))
    with ThreadPoolExecutor(2) as sides:
        kafka, lakehead = sides.map(_run_all, servers, (theirs, ours))
    both = zip(CALLS, kafka, lakehead, strict=True)
    return [Compared(call=call, kafka=their, lakehead=our) for call, their, our in both]


def _run_all(server: ServerProcess, folder: Path) -> list[Ran]:
    files = _files(folder)
    with server, OneJvm(folder / "jvm.log") as jvm, ExitStack() as scene:
        barrier = Barrier(server.bootstrap)
        found, now = [], ""
        for call in CALLS:
            if call.scene != now:
                scene.close()
                now = call.scene
                if now:
                    scene.enter_context(SCENES[now](server.bootstrap))
            found.append(jvm.run(call.tool, call.arguments(server.bootstrap, files), call.stdin))
            if call.is_change:
                barrier.wait()
        return found


def _files(folder: Path) -> Mapping[str, str]:
    """Write the files that calls name; return their paths."""
    contents = {**topic_calls.FILES, "offsets": group_calls.OFFSETS}
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {name: str(folder / name) for name in contents}


if __name__ == "__main__":
    main()
