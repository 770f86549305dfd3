"""fio, the peer of everything that writes to a disk."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.maven import MissingTool


@dataclass(frozen=True, slots=True, kw_only=True)
class FioResult:
    """Result of a run of sequential writes; the latency is fio's completion latency."""

    mb_per_second: float
    p50_ms: float
    p99_ms: float


def sequential_writes(
    file: Path,
    *,
    block_size: int,
    depth: int,
    start: int,
    size: int,
    seconds: float,
    is_synced: bool = False,
    rate_mb_per_second: float | None = None,
) -> FioResult:
    """Write with `O_DIRECT`, with `is_synced` also `O_DSYNC`, over and over a part of a file."""
    if shutil.which("fio") is None:
        raise MissingTool("fio is missing: apt-get install fio")
    command = [
        *("fio", "--name=peer", f"--filename={file}", "--rw=write", "--ioengine=libaio"),
        *("--direct=1", f"--bs={block_size}", f"--iodepth={depth}", f"--offset={start}"),
        *(f"--size={size}", "--time_based", f"--runtime={seconds}s", "--fallocate=none"),
        *("--overwrite=1", "--output-format=json", "--percentile_list=50:99"),
    ]
    if is_synced:
        command.append("--sync=dsync")
    if rate_mb_per_second is not None:
        command.append(f"--rate={int(rate_mb_per_second * 1e6)}")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise MissingTool(f"fio does not run here: {done.stderr.strip()[-200:]}")
    written = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write"]
    percentiles = written["clat_ns"]["percentile"]
    return FioResult(
        mb_per_second=written["bw_bytes"] / 1e6,
        p50_ms=percentiles["50.000000"] / 1e6,
        p99_ms=percentiles["99.000000"] / 1e6,
    )
