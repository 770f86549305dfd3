"""A PostgreSQL of its own in a temporary folder, with logical decoding. Reached by its socket."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

_CONFIG = """
listen_addresses = ''
wal_level = logical
max_wal_size = 2GB
timezone = 'UTC'
fsync = off                    # processes are killed, not the machine
log_min_messages = warning
"""
_START_S = 60.0


class Failed(Exception):
    """psql said no; the message is its own."""


def missing() -> str | None:
    """What a run needs and is not there; None if all is."""
    if postgres_programs() is None:
        return "no PostgreSQL: apt install postgresql postgresql-15-wal2json"
    if not any(Path("/usr/lib/postgresql").glob("*/lib/wal2json.so")):
        return "no wal2json: apt install postgresql-15-wal2json"
    return None


def postgres_programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


class Postgres:
    """One server on one folder, over many lives."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_programs()
        assert programs is not None
        self.folder = folder
        self._programs = programs
        # The server refuses to be root's.
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            shutil.chown(folder, self._user, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._run_as_owner("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as config:
            config.write(f"{_CONFIG}unix_socket_directories = '{folder}'\n")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def start(self) -> None:
        """Start, and return when it answers."""
        log = os.open(self.folder / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        try:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data)],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        finally:
            os.close(log)
        assert wait_until(self._answers, _START_S), self.log

    def crash(self) -> None:
        """End it at once, as a crash does: the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def psql(self) -> list[str]:
        """The command of a client that stops at the first error."""
        return psql(self.folder)

    def query(self, sql: str) -> list[str]:
        """The lines of an answer. Raises Failed."""
        return query(self.folder, sql)

    def _answers(self) -> bool:
        try:
            return self.query("SELECT 1") == ["1"]
        except Failed:
            return False

    def _run_as_owner(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), "-D", str(self._data), *arguments],
            user=self._user,
            cwd=self.folder,
            check=True,
            capture_output=True,
        )


def psql(folder: Path) -> list[str]:
    """The command of a client of the server in `folder`, which stops at the first error."""
    programs = postgres_programs()
    assert programs is not None
    # Not the one in the path, which at Debian is a program in Perl that looks for this one.
    client = str(programs / "psql")
    return [client, "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", str(folder), "-U", "postgres"]


def query(folder: Path, sql: str) -> list[str]:
    """The lines of the server's answer. Raises Failed."""
    done = subprocess.run(
        [*psql(folder), "-c", sql], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise Failed(done.stderr.strip())
    return done.stdout.split("\n")[:-1]


def query_patiently(folder: Path, sql: str, patience_s: float = 60.0) -> list[str]:
    """As `query`, again while the server is away."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return query(folder, sql)
        except Failed:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new server with nothing in it, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="lakehead-pg-"))
    server = None
    try:
        folder.chmod(0o755)
        server = Postgres(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
