"""A Spark cluster of this machine: a master and workers, each a process of its own, as
`sbin/start-all.sh` of a Spark distribution starts them.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from bench.process import free_port, log_tail
from tests.support.waiting import wait_until

START_S = 60.0
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@contextlib.contextmanager
def spark_cluster(folder: Path, *, workers: int) -> Iterator[str]:
    """Run a cluster while the block runs; yield the master's URL. Its logs are in `folder`."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            _daemon(folder / "master", _MASTER, "--port", str(port), "--webui-port", str(page))
        )
        _wait(master, "I have been elected leader")
        logs = [
            stack.enter_context(
                _daemon(
                    *(folder / f"worker-{number}", _WORKER, "--cores", "1", "--memory", "1g"),
                    *("--webui-port", str(free_port()), url),
                )
            )
            for number in range(workers)
        ]
        for log in logs:
            _wait(log, "Successfully registered with master")
        yield url


@contextlib.contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run a daemon of Spark; yield its log. Workers' executors end with their group."""
    folder.mkdir(parents=True)
    home = files("pyspark")
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, "--host", "127.0.0.1", *arguments],
            env=os.environ
            | {
                "SPARK_HOME": str(home),
                "SPARK_WORKER_DIR": str(folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(log: Path, line: str) -> None:
    assert wait_until(lambda: line in log.read_text(errors="replace"), START_S), log_tail(log)
