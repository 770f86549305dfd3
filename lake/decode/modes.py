"""Modes of a read that meets what cannot be read, as those of Spark's readers of CSV and JSON: see
`lakehead.lake.decode.invalid`. Without Arrow: the options of a read need only the names.
"""

from typing import Any, Literal, get_args

from lakehead.storage.errors import SettingsError

Mode = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
MODES: tuple[Mode, ...] = get_args(Mode)


def checked_mode(value: Any) -> Mode:
    """Return a mode by its name, in any case. Raises SettingsError."""
    for mode in MODES:
        if isinstance(value, str) and value.strip().upper() == mode:
            return mode
    raise SettingsError(f"mode is {', '.join(MODES[:-1])} or {MODES[-1]}, not {value!r}")
