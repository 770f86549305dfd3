"""Requests and dollars of a run, from the broker's page of metrics."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.process import ServerProcess
from bench.store_use import SETTLED_BYTES, StoreUse, counted
from bench.workloads import Figures


class Page:
    """A page of metrics. Data of a run is uploaded after some looks at it."""

    def __init__(self) -> None:
        self.puts, self.gets, self.looks_until_uploaded = 10, 5, 0

    def text(self) -> str:
        used = 50
        if self.looks_until_uploaded:
            self.looks_until_uploaded -= 1
            used = SETTLED_BYTES
            if not self.looks_until_uploaded:
                self.puts += 3  # the uploads
        return (
            "# TYPE lakehead_store_requests_total counter\n"
            f'lakehead_store_requests_total{{operation="put"}} {self.puts}\n'
            f'lakehead_store_requests_total{{operation="get"}} {self.gets}\n'
            f"lakehead_store_cost_dollars_total {self.puts / 1000}\n"
            f"lakehead_wal_used_bytes {used}\n"
        )


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def server(page: Page, tmp_path: Path) -> Iterator[ServerProcess]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.text().encode())

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        log = tmp_path / "log"
        yield ServerProcess("counted", [], port=1, log=log, metrics_port=http.server_port)
        http.shutdown()


def test_requests_of_all_kinds_are_counted(server: ServerProcess) -> None:
    assert StoreUse.of(server) == StoreUse(requests=15, dollars=0.01)


def test_uploads_that_follow_a_run_belong_to_it(server: ServerProcess, page: Page) -> None:
    def run() -> Figures:
        page.puts += 1
        page.looks_until_uploaded = 2
        return Figures(mb_per_second=7.0)

    found = counted(server, run, 2**30)
    assert (found.mb_per_second, found.requests_per_gb) == (7.0, 4)
    assert found.dollars_per_tb == pytest.approx(0.004 * 1024)


def test_a_server_that_counts_nothing_only_runs(tmp_path: Path) -> None:
    server = ServerProcess("silent", [], port=1, log=tmp_path / "log")
    assert counted(server, lambda: Figures(p50_ms=1.0), 2**30) == Figures(p50_ms=1.0)
