"""A metadata service as EC2 has it, version 2 only: a token by PUT, texts by GET."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DOCUMENT = {
    "instanceId": "i-0a",
    "region": "eu-west-1",
    "availabilityZone": "eu-west-1a",
    "accountId": "1",
}


class FakeImds:
    """What it says may be changed at any time: `texts` by path under /latest/."""

    def __init__(self) -> None:
        self.texts = {
            "dynamic/instance-identity/document": json.dumps(DOCUMENT),
            "meta-data/placement/availability-zone-id": "euw1-az2",
        }
        self.tokens: set[str] = set()
        self.tokens_given = 0
        self.is_broken = False
        self.endpoint = ""

    def tag(self, **tags: str) -> None:
        """Set the instance's tags, `lakehead:` before each."""
        self.texts["meta-data/tags/instance"] = "\n".join(f"lakehead:{name}" for name in tags)
        for name, value in tags.items():
            self.texts[f"meta-data/tags/instance/lakehead:{name}"] = value

    def announce(self, action: str) -> None:
        """Announce an interruption."""
        notice = {"action": action, "time": "2026-01-01T00:02:00Z"}
        self.texts["meta-data/spot/instance-action"] = json.dumps(notice)

    def recommend(self) -> None:
        """Recommend a rebalance."""
        notice = {"noticeTime": "2026-01-01T00:00:00Z"}
        self.texts["meta-data/events/recommendations/rebalance"] = json.dumps(notice)

    def schedule(self, *events: dict[str, str]) -> None:
        """Schedule maintenance; none: what was scheduled is over."""
        self.texts["meta-data/events/maintenance/scheduled"] = json.dumps(events)

    def target(self, state: str) -> None:
        """Have the auto-scaling group bring the instance to a state."""
        self.texts["meta-data/autoscaling/target-lifecycle-state"] = state

    def answer(self, method: str, path: str, token: str, ttl: str) -> tuple[int, str]:
        if self.is_broken:
            return 500, "trouble"
        if method == "PUT" and path == "/latest/api/token":
            if not ttl.isdecimal() or not 1 <= int(ttl) <= 21600:
                return 400, ""
            self.tokens_given += 1
            self.tokens.add(f"token{self.tokens_given}")
            return 200, f"token{self.tokens_given}"
        if token not in self.tokens:
            return 401, "Unauthorized"
        text = self.texts.get(path.removeprefix("/latest/"))
        return (404, "Not Found") if text is None else (200, text)


@contextmanager
def serve_imds() -> Iterator[FakeImds]:
    """Serve one at a free port of loopback."""
    imds = FakeImds()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

        def _answer(self, method: str) -> None:
            token = self.headers.get("X-aws-ec2-metadata-token", "")
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            status, text = imds.answer(method, self.path, token, ttl)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        imds.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
        thread.start()
        try:
            yield imds
        finally:
            server.shutdown()
            thread.join()
