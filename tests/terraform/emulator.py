"""An AWS of this machine for Terraform and boto3: moto with our changes, in a process of its own.

moto lives in an environment of its own, in the user's cache, made at the first use (20 s, 140 MB)
from requirements/emulator.txt.
"""

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.own_environment import NotInstalled, environment_of

PROJECT = Path(__file__).resolve().parents[2]
REGION = "us-east-1"
_RESET_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """A running emulator. `log` is what it says of requests and of its own faults; `programs` is
    the folder of its Python and of AWS' own command line.
    """

    address: str
    log: Path
    pid: int
    programs: Path

    def environment(self, region: str = REGION) -> dict[str, str]:
        """Return what makes boto3, AWS' tools and Terraform's provider ask this AWS only."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, region: str = REGION) -> Any:
        """Return boto3's client of a service."""
        import boto3

        session = boto3.Session("test", "test", region_name=region)
        return session.client(service, endpoint_url=self.address)

    def reset(self) -> None:
        """Forget everything."""
        request = urllib.request.Request(f"{self.address}/moto-api/reset", method="POST")
        with urllib.request.urlopen(request, timeout=_RESET_S) as answer:
            answer.read()

    def faults(self) -> list[str]:
        """Return where the emulator itself failed: what it said of AWS then counts for nothing."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "Exception on " in line or line.startswith("Traceback")]


@contextlib.contextmanager
def emulator(log: Path) -> Iterator[Emulator]:
    """Serve an empty AWS. Raises NotInstalled."""
    programs = environment_of("aws-emulator", "emulator") / "bin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with (
        log.open("w") as said,
        subprocess.Popen(
            [programs / "python", "-m", "tests.terraform.emulator_server"],
            cwd=PROJECT,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        try:
            address = process.stdout.readline().strip()
            if not address:
                process.wait()
                raise NotInstalled(log.read_text().strip())
            yield Emulator(address=address, log=log, pid=process.pid, programs=programs)
        finally:
            process.stdin.close()
            process.wait()
