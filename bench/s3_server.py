"""A real S3 server on this machine, for tests, benchmarks and the demo: versitygw over a folder.

It is exact about conditional puts under races, which most emulators are not. The program is built
once with Go's own tool chain and kept in the user's cache.

`python -m bench.s3_server` builds it; with a folder, it serves that folder until it is stopped;
with `-- COMMAND` behind the folder, it serves it while the command runs, whose environment leads to
it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.maven import MissingTool
from bench.process import free_port
from bench.user_cache import StepFailed, built_once, run_step

VERSION = "v1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
_BUILD_S = 1200
_START_S = 20.0
_ACCESS_KEY = "lakehead"
_SECRET_KEY = "lakehead-secret"
_REGION = "us-east-1"


class NotBuilt(MissingTool):
    """The server cannot be built here. The message says why."""


def program() -> Path:
    """Return the server's executable; the first call on a machine builds it, in minutes."""
    return built_once(f"versitygw-{VERSION}", "versitygw", _build)


def _build(folder: Path) -> Path:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise NotBuilt("versitygw cannot be built: the Go tool chain (`go`) is not on the path")
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
    try:
        run_step([go, "install", "-ldflags=-s -w", _MODULE], _BUILD_S, environment=environment)
    except StepFailed as error:
        raise NotBuilt(f"versitygw cannot be built: {error}") from None
    return folder / "versitygw"


@dataclass(slots=True, kw_only=True)
class S3Server:
    """A running server. `folder` holds its buckets, each a folder; `bucket` is there already."""

    folder: Path
    endpoint: str
    bucket: str = "lake"
    access_key: str = _ACCESS_KEY
    secret_key: str = _SECRET_KEY
    region: str = _REGION
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """The bucket as a store's URI."""
        return f"s3://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """The standard variables by which any S3 client finds and enters this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self, name: str) -> None:
        """Make another bucket, by the server's own interface."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        client.create_bucket(Bucket=name)
        client.close()

    def start(self) -> None:
        """Start the process, also again on the same folder and port, and wait until it listens."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        host, _, port = self.endpoint.rpartition("/")[2].rpartition(":")
        log = self.folder.with_name(self.folder.name + ".log")
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(program()), "--port", f"{host}:{port}", "--quiet", "posix", str(self.folder)],
                env={
                    **os.environ,
                    "ROOT_ACCESS_KEY": self.access_key,
                    "ROOT_SECRET_KEY": self.secret_key,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + _START_S
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"versitygw ended: {log.read_text(errors='replace')[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"versitygw does not listen on {self.endpoint}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill the process, as a machine dies. Its data stays in the folder."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running_server(folder: Path, *, bucket: str = "lake") -> Iterator[S3Server]:
    """Serve `folder`, with one bucket in it, until the block ends. Raises NotBuilt."""
    program()
    server = S3Server(folder=folder, endpoint=f"http://127.0.0.1:{free_port()}", bucket=bucket)
    server.start()
    try:
        if not (folder / bucket).exists():
            server.create_bucket(bucket)
        yield server
    finally:
        server.stop()


def main(arguments: list[str]) -> int:
    """Build the server; serve the folder that is given, if one is; return the command's status."""
    if arguments and arguments[0] in {"-h", "--help"}:
        print(__doc__)
        return 0
    folders, command = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        folders, command = arguments[:at], arguments[at + 1 :]
    try:
        program()
    except NotBuilt as reason:
        print(reason, file=sys.stderr)
        return 1
    if not folders:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the server, too
    with running_server(Path(folders[0])) as server:
        if command:
            return subprocess.run(
                command, env=os.environ | server.environment, check=False
            ).returncode
        for name, value in server.environment.items():
            print(f"export {name}={value}")
        print(f"# store: {server.uri}; stop with Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            assert server.process is not None
            server.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
