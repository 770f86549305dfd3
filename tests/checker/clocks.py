"""Wall clocks that are wrong: libfaketime (a package of the system) under a process."""

from collections.abc import Mapping
from pathlib import Path

_PLACES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
)


def library() -> str | None:
    """Where libfaketime is; None if it is not installed."""
    return next((place for place in _PLACES if Path(place).exists()), None)


class WallClock:
    """The wall clock of one process, and its error in seconds. Monotonic clocks stay right."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process needs in its environment to have this clock."""
        return {
            "LD_PRELOAD": library() or "",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }

    def jump(self, seconds: int) -> None:
        """Be wrong by so much, from within a second on."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.rename(self._file)
