"""Runs a workload on a PostgreSQL that is now and then not there."""

import subprocess
import threading
import time
from collections import deque

from tests.changes.postgres import Postgres, query_patiently
from tests.changes.row_changes import Transaction, Workload

_CONNECTION_LOST = 2
"""psql's exit status."""
_UNSURE = 20_000
"""Transactions that are kept to be run again: more than fit into the pipe to the server."""


class Writer:
    """A thread that runs a workload to its end, each transaction once. `failed` says why not."""

    def __init__(self, server: Postgres, workload: Workload) -> None:
        self.changes = 0
        """Rows changed by the transactions that were sent."""
        self.crashes = 0
        self.failed: BaseException | None = None
        self._server = server
        self._transactions = workload.transactions()
        self._sent: deque[Transaction] = deque(maxlen=_UNSURE)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._run_session():
                self.crashes += 1
        except BaseException as error:
            self.failed = error

    def _run_session(self) -> bool:
        """Run transactions until all are committed; False if the server went away."""
        committed = int(query_patiently(self._server.folder, "SELECT n FROM progress")[0])
        again = [one for one in self._sent if one.number > committed]
        client = subprocess.Popen(
            self._server.psql(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stdin is not None
        try:
            for transaction in again:
                client.stdin.write(transaction.sql)
            for transaction in self._transactions:
                self._sent.append(transaction)
                self.changes += transaction.changes
                client.stdin.write(transaction.sql)
        except BrokenPipeError:
            pass  # its status tells
        _, error = client.communicate()
        if client.returncode not in {0, _CONNECTION_LOST}:
            raise AssertionError(error[-2000:])
        return client.returncode == 0


def wait_done(writer: Writer, timeout_s: float) -> None:
    """Wait for the last transaction; raise what went wrong."""
    until = time.monotonic() + timeout_s
    while not writer.is_done:
        assert time.monotonic() < until, f"{writer.changes} changes after {timeout_s:.0f} s"
        time.sleep(0.1)
    if writer.failed is not None:
        raise writer.failed
