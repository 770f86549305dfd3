"""Profile the broker: `python -m bench.profiling produce` (or `consume`).

Runs one broker under the load of Kafka's own tool and prints the functions with the most time of
their own. With py-spy on the PATH the broker is sampled, which does not slow it and sees native
code; without it the broker runs under cProfile, whose cost per call makes small functions look
heavier than they are.

    RECORDS=400000      1 KiB records of the run
    BATCH_BYTES=16384   the producer's batch.size
    TOP=40              functions that are shown
"""

import os
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench import workloads
from bench.lakehead_server import lakehead_server
from bench.loads import MIB, Kind, Load
from bench.process import ServerProcess
from bench.workloads import Figures

TOPIC = "profile"
FILLING = Load(name=TOPIC, kind=Kind.PRODUCE, batch_bytes=MIB)
SAMPLES_PER_SECOND = 200
WAITING = re.compile(r"(0x\w+|epoll_p?wait|nanosleep) \(libc")  # an address: a futex, mostly


def main() -> None:
    """Profile the path named on the command line."""
    if sys.argv[1:] not in (["produce"], ["consume"]):
        raise SystemExit("usage: python -m bench.profiling produce|consume")
    path = sys.argv[1]
    records = int(os.environ.get("RECORDS", "400000"))
    top = int(os.environ.get("TOP", "40"))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        if sampler := shutil.which("py-spy"):
            figures = sampled(sampler, folder, path, records, top)
        else:
            figures = traced(folder, path, records, top)
    print(f"{figures.mb_per_second} MB/s, {figures.cpu_seconds_per_gb:.2f} CPU s/GB under it")


def load(server: ServerProcess, path: str, records: int) -> Figures:
    """The measured part; for `consume` the topic is there already."""
    if path == "consume":
        return workloads.consume(server, TOPIC, FILLING, records)
    batch_bytes = int(os.environ.get("BATCH_BYTES", "16384"))
    measured = Load(name=TOPIC, kind=Kind.PRODUCE, batch_bytes=batch_bytes)
    return workloads.produce(server, TOPIC, measured, records)


def prepare(server: ServerProcess, path: str, records: int) -> None:
    workloads.create_topic(server, TOPIC, {})
    first = records if path == "consume" else records // 4
    workloads.produce(server, TOPIC, FILLING, first)


def sampled(sampler: str, folder: Path, path: str, records: int, top: int) -> Figures:
    """Sample a running broker during the load."""
    stacks = folder / "stacks"
    with lakehead_server(folder) as server:
        prepare(server, path, records)
        command = [
            *(sampler, "record", "--pid", str(server.process.pid), "--duration", "3600"),
            *("--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--output", str(stacks)),
            *("--native", "--function"),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as sampling:
            figures = load(server, path, records)
            sampling.send_signal(2)
            sampling.wait(60)
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if WAITING.match(frames[-1]):
            continue
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    whole = sum(own.values())
    print(f"{whole} samples\n   own  within  function")
    for frame, samples in own.most_common(top):
        print(f"{samples / whole:6.1%}  {within[frame] / whole:6.1%}  {frame}")
    return figures


def traced(folder: Path, path: str, records: int, top: int) -> Figures:
    """Run the broker under cProfile."""
    profile = folder / "profile"
    server = lakehead_server(folder, under=("-m", "cProfile", "-o", str(profile)))
    with server:
        prepare(server, path, records)
        figures = load(server, path, records)
    pstats.Stats(str(profile)).sort_stats("tottime").print_stats(top)
    return figures


if __name__ == "__main__":
    main()
