"""The log of a process: one event a line on standard error, as logfmt or JSON, with its node.

Several nodes of a machine share one log: a line is written at once, and says whose it is.
"""

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from lakehead.storage.errors import SettingsError

LEVELS: Mapping[str, int] = {
    "TRACE": logging.NOTSET,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Levels, in Kafka's words."""
LOG_FORMATS = ("logfmt", "json")
"""Forms of a line: key=value for people and for tools that know logfmt, or an object of JSON."""
_FIRST_KEYS = ("timestamp", "level", "node_id", "event")
_WORDS = {number: word for word, number in LEVELS.items()}


def set_level(word: str) -> None:
    """Write events of this process from a level of LEVELS on."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[word]))


def level_word() -> str:
    """Return the level of LEVELS that events of this process are written from."""
    return _WORDS[structlog.get_logger().get_effective_level()]


def configure_logs(
    level: str, node_id: int | None = None, *, log_format: str = LOG_FORMATS[0]
) -> None:
    """Write events from `level` on, a name of a level of `logging` in any case; `node_id` is that
    of events that name none themselves. Raises SettingsError for another level or format.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise SettingsError(f"log level: {level!r} is not one of: debug, info, warning, error")
    if log_format not in LOG_FORMATS:
        raise SettingsError(f"log format: {log_format!r} is not one of: {', '.join(LOG_FORMATS)}")

    def add_node_id(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if node_id is not None:
            event.setdefault("node_id", node_id)
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_node_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *_renderer(log_format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _LogStream(sys.stderr))),
    )


class _LogStream:
    """The stream of a log. A full disk costs events, and nothing else: an error would end the task
    that reports an event, in the middle of its work.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text if that is possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered if that is possible."""
        with suppress(OSError):
            self._stream.flush()


def _renderer(log_format: str) -> tuple[Processor, ...]:
    if log_format == "json":
        return (_ordered, structlog.processors.JSONRenderer(default=str, ensure_ascii=False))
    return (
        _as_text,
        structlog.processors.LogfmtRenderer(
            key_order=_FIRST_KEYS, drop_missing=True, bool_as_flag=False
        ),
    )


def _ordered(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put the keys that every event has in front."""
    return {**{key: event[key] for key in _FIRST_KEYS if key in event}, **event}


def _as_text(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Give keys a form that logfmt can have: it has no blanks in them."""
    return {"_".join(key.split()): value for key, value in event.items()}
