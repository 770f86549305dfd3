"""A stand-in for EC2 and EC2 Auto Scaling that writes down what boto3 asks, and knows nothing."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

_EMPTY = "".join(
    f"<{name}/>" for name in ("volumeSet", "reservationSet", "networkInterfaceSet")
).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCall:
    """A request of AWS's query protocol: `ec2:AttachVolume` with its parameters."""

    action: str
    parameters: dict[str, str]

    def named(self, name: str) -> list[str]:
        """Return the values of a parameter, of a list's too."""
        return [
            value for key, value in self.parameters.items() if re.fullmatch(rf"{name}(\.\d+)?", key)
        ]


@contextlib.contextmanager
def recorded_aws() -> Iterator[tuple[str, list[AwsCall]]]:
    """Serve; yields the endpoint, and the calls as they come."""
    calls: list[AwsCall] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            parameters = dict(parse_qsl(body, keep_blank_values=True))
            service = self.headers["Authorization"].split("/")[3]
            calls.append(
                AwsCall(
                    action=f"{service}:{parameters.pop('Action')}",
                    parameters={k: v for k, v in parameters.items() if k != "Version"},
                )
            )
            self.send_response(200)
            answer = b"<Answer>" + _EMPTY + b"</Answer>"
            if service == "autoscaling":
                answer = b"<R><CompleteLifecycleActionResult/></R>"
            if calls[-1].action == "autoscaling:SetInstanceHealth":
                answer = b"<R><ResponseMetadata/></R>"
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:  # silence
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
