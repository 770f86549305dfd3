"""Loggers of events whose library is loaded at the first event.

structlog imports rich, for tracebacks in colours. That takes a tenth of a second, in each process
that reads: most of these never log.
"""

from typing import Any


class _EventLogger:
    """A logger of structlog, as that is configured at each event."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), method)


def event_logger(name: str) -> Any:
    """Return the logger `name`, with structlog's methods (`warning("event", key=value)`)."""
    return _EventLogger(name)
