"""A run of `materialize` as a process of its own, to be raced and killed.

`python -m tests.support.materialize_process SETTINGS` with the settings as JSON; prints the result
as JSON, or the error on stderr with status 1.
"""

import json
import subprocess
import sys

from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.storage.errors import LakeheadError
from tests.support.template_process import ROOT, ForkedPython, job_environment


def start(settings: MaterializeSettings, *, failpoint: str = "") -> "subprocess.Popen[str]":
    fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    return ForkedPython(
        [sys.executable, "-m", "tests.support.materialize_process", json.dumps(fields)],
        jobs=True,
        env=job_environment(failpoint),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", *, timeout: float = 120) -> tuple[int, str, str]:
    """Wait for the end; (status, stdout, stderr)."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def main() -> int:
    settings = MaterializeSettings(**json.loads(sys.argv[1]))
    sys.stdout.write("started\n")
    sys.stdout.flush()
    try:
        result = materialize(settings)
    except LakeheadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    figures = {"records": result.records, "dead_letters": result.dead_letters}
    sys.stdout.write(json.dumps(figures | {"commits": result.commits}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
