"""JSON lines: each line is a value, kept byte for byte; empty lines are none."""

from collections.abc import Iterator

import msgspec

from lakehead.connectors.sources.files.lines import Line
from lakehead.connectors.sources.files.rows import Row


def json_rows(found: Iterator[Line], *, limit: int) -> Iterator[Row]:
    """Yield the values of lines."""
    decode = msgspec.json.Decoder().decode
    for line in found:
        text = line.text.strip()
        if not text:
            continue
        columns, reason = None, ""
        if line.is_too_long:
            reason = f"the line has more than {limit} bytes (line_bytes_max)"
        else:
            try:
                columns = decode(text)
            except (ValueError, RecursionError) as error:  # ValueError: also of what is not UTF-8
                reason = f"not JSON: {error}"
        yield Row(
            line.end,
            line.number,
            line.number + 1,
            line.text if reason else text,
            columns if isinstance(columns, dict) else None,
            reason,
            len(line.text) + 1,
            may_be_cut=not line.is_ended and reason.endswith("truncated"),
        )
