"""Just enough HTTP/1.1 to pass messages on: heads are read whole, bodies stream by their length."""

import asyncio
from dataclasses import dataclass

_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request or an answer. `raw` is what goes on; `length` is -1 for a chunked
    body.
    """

    raw: bytes
    first_line: str
    headers: dict[str, str]
    length: int

    @property
    def method(self) -> str:
        """Of a request."""
        return self.first_line.split(" ", 1)[0]

    @property
    def target(self) -> str:
        """Of a request: path and query."""
        return self.first_line.split(" ", 2)[1]

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.first_line.split(" ", 2)[1])

    def header(self, name: str) -> str:
        """Return the header's value, empty if it is absent."""
        return self.headers.get(name, "")

    def without(self, name: str) -> "Head":
        """Return this head without one header."""
        lines = self.raw.split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith(name.encode() + b":")]
        headers = {key: value for key, value in self.headers.items() if key != name}
        return Head(b"\r\n".join(kept), self.first_line, headers, self.length)


async def read_head(reader: asyncio.StreamReader, *, answers: str = "") -> Head | None:
    """Return the next head; None when the peer closed before it. `answers`: the method to which
    this is the answer. Raises EOFError, ValueError (no HTTP).
    """
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if headers.get("transfer-encoding", "").lower() == "chunked":
        length = -1
    if answers == "HEAD" or (answers and first.split(" ", 2)[1] in {"100", "204", "304"}):
        length = 0
    return Head(raw, first, headers, length)


async def pass_body(
    head: Head,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter | None,
    *,
    bytes_per_s: float = 0.0,
    stop_after: int | None = None,
    flip: bool = False,
) -> int:
    """Pass the body that belongs to `head` on, or drop it without a writer. Returns its size.

    A writer whose peer has closed takes no more; the body is read to its end all the same.
    `stop_after`: so many bytes and no more. `flip`: the middle byte is changed.
    """
    if head.length < 0:
        return await _pass_chunks(reader, writer)
    rest = head.length if stop_after is None else min(head.length, stop_after)
    flip_at = head.length // 2 if flip and head.length else -1
    done = 0
    while done < rest:
        chunk = await reader.read(min(_CHUNK, rest - done))
        if not chunk:
            raise EOFError("the body ended early")
        if done <= flip_at < done + len(chunk):
            changed = bytearray(chunk)
            changed[flip_at - done] ^= 0x55
            chunk = bytes(changed)
        done += len(chunk)
        writer = await _write(writer, chunk)
        if bytes_per_s:
            await asyncio.sleep(len(chunk) / bytes_per_s)
    return done


async def _pass_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> int:
    done = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        chunk = line + await reader.readexactly(size + 2)
        if size == 0 and not chunk.endswith(b"\r\n\r\n"):
            chunk += await reader.readuntil(b"\r\n\r\n")  # trailers
        done += size
        writer = await _write(writer, chunk)
        if size == 0:
            return done


async def _write(writer: asyncio.StreamWriter | None, chunk: bytes) -> asyncio.StreamWriter | None:
    if writer is None or writer.is_closing():
        return None
    try:
        writer.write(chunk)
        await writer.drain()
    except OSError:
        return None
    return writer
