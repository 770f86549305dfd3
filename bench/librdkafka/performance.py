"""Runs of `rdkafka_performance`: producers as processes, consumers of all partitions.

Units are those of `bench.workloads`. The tool's own MB are 10^6 bytes, so its counts are used.
"""

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.librdkafka.program import program
from bench.loads import SINGLE, Load
from bench.process import ServerProcess
from bench.workloads import RUN_SECONDS_MAX, Figures, RunFailed, per_gb

_MIB = 2**20
_CONNECTED_S = 1.0
"""Consumers of an empty topic are connected after this."""
_QUIET = ("-i", "600000")
"""Interval of reports and of statistics in ms: longer than a run."""
_RUN = re.compile(
    r"% (\d+) messages (?:produced )?\((\d+) bytes\)(?:, (\d+) delivered)?.*?in (\d+)ms: "
)


def produce(server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
    """Produce as fast as it goes. The rate of one producer is its own report; that of several is
    taken from the start of the first to the end of the last.
    """
    os.sync()
    before, began = server.usage().cpu_seconds, time.monotonic()
    each = max(1, records // load.producers)
    outputs = _outputs([_producer(server, topic, load, each)] * load.producers)
    wall_s = time.monotonic() - began
    usage = server.usage()
    reports = [reported(output, each) for output in outputs]
    rate = each * load.producers * load.record_bytes / _MIB / wall_s
    return Figures(
        mb_per_second=reports[0] if load.producers == 1 else rate,
        cpu_seconds_per_gb=per_gb(usage.cpu_seconds - before, each * load.producers, load),
        peak_rss_bytes=usage.peak_rss_bytes,
    )


def consume(server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
    """Consume all partitions from their start, from the first record on."""
    before = server.usage().cpu_seconds
    [output] = _outputs([_consumer(server, topic, load, records)])
    usage = server.usage()
    return Figures(
        mb_per_second=reported(output, records),
        cpu_seconds_per_gb=per_gb(usage.cpu_seconds - before, records, load),
        peak_rss_bytes=usage.peak_rss_bytes,
    )


def tail(server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
    """Each of the load's consumers reads the empty topic's records while one producer writes them.

    The rate is that of all consumers together; latencies are from send to each consumer; CPU
    seconds are for a GB that was written, with all of its reads.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        times = [Path(folder) / str(number) for number in range(load.consumers)]
        consuming = [
            stack.enter_context(
                _running([*_consumer(server, topic, load, records), "-l", "-A", str(path)])
            )
            for path in times
        ]
        time.sleep(_CONNECTED_S)
        os.sync()
        before, began = server.usage().cpu_seconds, time.monotonic()
        _outputs([[*_producer(server, topic, load, records), "-l"]])
        for process in consuming:
            reported(_output(process), records)
        wall_s = time.monotonic() - began
        usage = server.usage()
        latencies = sorted(us for path in times for us in map(int, path.read_text().split()))
    if not latencies:
        raise RunFailed("no record had a latency")
    moved = records * load.record_bytes * load.consumers
    p50, p99, p999 = (latencies[int(len(latencies) * rank)] / 1e3 for rank in (0.5, 0.99, 0.999))
    return Figures(
        mb_per_second=moved / _MIB / wall_s,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        cpu_seconds_per_gb=per_gb(usage.cpu_seconds - before, records, load),
        peak_rss_bytes=usage.peak_rss_bytes,
    )


def reported(output: str, records: int) -> float:
    """Parse the last report of the tool: MB/s. Raises RunFailed, also if fewer records were
    consumed, or delivered.
    """
    found = _RUN.findall(output)
    if found:
        count, size, delivered, milliseconds = found[-1]
        if int(delivered or count) >= records:
            return float(size) / _MIB / max(int(milliseconds), 1) * 1e3
    raise RunFailed(f"rdkafka_performance, {records} records:\n{output}")


def _producer(server: ServerProcess, topic: str, load: Load, records: int) -> list[str]:
    settings = {
        **server.librdkafka,
        "linger.ms": str(load.linger_ms),
        "batch.size": str(load.batch_bytes),
        "batch.num.messages": "1" if load.batch_bytes == SINGLE else "1000000",
        "enable.idempotence": str(load.idempotent).lower(),
        "max.in.flight.requests.per.connection": "5",
    }
    return [
        *(str(program()), "-P", *_QUIET, "-t", topic, "-a", "all", "-z", load.compression),
        *("-s", str(load.record_bytes), "-c", str(records)),
        *_settings(settings),
    ]


def _consumer(server: ServerProcess, topic: str, load: Load, records: int) -> list[str]:
    partitions = (text for number in range(load.partitions) for text in ("-p", str(number)))
    return [
        *(str(program()), "-C", "-q", *_QUIET, "-t", topic, *partitions),
        *("-o", "beginning", "-c", str(records)),
        *_settings(server.librdkafka),
    ]


def _settings(settings: dict[str, str]) -> Iterator[str]:
    for name, value in settings.items():
        yield from ("-X", f"{name}={value}")


def _outputs(commands: Iterable[list[str]]) -> list[str]:
    """Run these at the same time, to their ends."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_running(command)) for command in commands]
        return [_output(process) for process in processes]


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a tool; one that has not ended with the block is killed."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _output(process: "subprocess.Popen[str]") -> str:
    try:
        output, _ = process.communicate(timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"rdkafka_performance did not end within {RUN_SECONDS_MAX:.0f} s") from None
    if process.returncode:
        raise RunFailed(f"rdkafka_performance ended with {process.returncode}:\n{output[-2000:]}")
    return output
