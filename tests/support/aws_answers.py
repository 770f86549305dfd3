"""A server in the place of a service of AWS, which answers what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

ERROR = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"


class Answers:
    """What the server says next; a text of None closes the connection without a word. `reply`, if
    there is one, makes status and text of a request.
    """

    def __init__(self) -> None:
        self.status = 200
        self.text: str | None = ""
        self.reply: Callable[[dict[str, str]], tuple[int, str]] | None = None
        self.asked: list[dict[str, str]] = []
        self.address = ""

    def answer(self, asked: dict[str, str]) -> tuple[int, str | None]:
        self.asked.append(asked)
        return self.reply(asked) if self.reply else (self.status, self.text)


@contextmanager
def serve_answers() -> Iterator[Answers]:
    """Serve at a free port of loopback."""
    said = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, text = said.answer({name: values[0] for name, values in form.items()})
            if text is None:
                self.close_connection = True
                return
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        said.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
        thread.start()
        try:
            yield said
        finally:
            server.shutdown()
            thread.join()
