"""The files of `terraform test` side by side, each with a limit of its own.

Terraform starts the provider again for each of a run's walks, and a start takes half a second of
processor time. One provider serves all files here, in its own debugging mode: it is not configured,
since all runs mock it.
"""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

FILE_SECONDS = 3600
"""Limit of one file: at the lowest priority beside a load of 20 to 36 one took 25 minutes."""

COLLECTOR = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""Go collects less often in a process of up to a GiB: a third of Terraform's processor time."""

_ATTACH = re.compile(r"TF_REATTACH_PROVIDERS='(.*)'")
_SUMMARY = re.compile(r"^(?:Success|Failure)! (\d+) passed, (\d+) failed", re.MULTILINE)


class NotServed(Exception):
    """The provider ended at its start. The message has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFile:
    """A finished file of tests."""

    name: str
    passed: int
    failed: int
    """Runs. A file without a summary, or with another status than 0, has failed at least once."""
    seconds: float
    output: str

    def line(self) -> str:
        """Return a line of the report."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.name}: {self.passed} passed{failed} ({self.seconds:.0f} s)"


@contextlib.contextmanager
def served_provider(terraform_folder: Path, log: Path) -> Iterator[dict[str, str]]:
    """Serve the AWS provider that `terraform init` has chosen; give the environment that leads
    Terraform there. Raises NotServed.
    """
    (program,) = terraform_folder.glob(
        ".terraform/providers/*/hashicorp/aws/*/*/terraform-provider-aws*"
    )
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [program, "-debug"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout
        try:
            attach = next(filter(None, map(_ATTACH.search, process.stdout)), None)
            if attach is None:
                raise NotServed(log.read_text().strip() or f"{program.name} ended at its start")
            yield {"TF_REATTACH_PROVIDERS": attach[1]}
        finally:
            process.terminate()


def run_files(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    tell: Callable[[str], object],
    *,
    seconds: float = FILE_SECONDS,
    workers: int | None = None,
) -> list[TestFile]:
    """Run each file of tests of a folder by `command -filter=FILE`, as many at once as there are
    cores; return them by name. `tell` gets a line for each, and all output of one that fails.
    """
    files = sorted((folder / "tests").glob("*.tftest.hcl"), key=_runs_in, reverse=True)
    done = []
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        running = [
            pool.submit(_run_file, command, folder, environment, file, seconds) for file in files
        ]
        for future in as_completed(running):
            done.append(one := future.result())
            if one.failed:
                tell(one.output.rstrip())
            tell(one.line())
    return sorted(done, key=lambda one: one.name)


def _runs_in(file: Path) -> int:
    return file.read_text().count('\nrun "')


def _run_file(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    file: Path,
    seconds: float,
) -> TestFile:
    began = time.monotonic()
    try:
        finished = subprocess.run(
            [*command, f"-filter={file.relative_to(folder)}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        status, output = finished.returncode, finished.stdout
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode(errors="replace")
        status, output = 1, f"{printed}\nnot done in {seconds:.0f} seconds"
    summary = _SUMMARY.search(output)
    passed, failed = (int(summary[1]), int(summary[2])) if summary else (0, 0)
    return TestFile(
        name=file.name.removesuffix(".tftest.hcl"),
        passed=passed,
        failed=max(failed, int(status != 0 or summary is None)),
        seconds=time.monotonic() - began,
        output=output,
    )
