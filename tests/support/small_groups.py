"""Work items of tables that inflate few bytes at once, so that parts of a few records end."""

from typing import Any

import pytest

from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.jobs import table_item


def inflate_little(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Have work items inflate at most `size_bytes` at once, or one larger batch."""

    def small(*given: Any, **more: Any) -> Any:
        return RecordDecoder(*given, **more, inflated_bytes_max=size_bytes)

    monkeypatch.setattr(table_item, "RecordDecoder", small)
