"""The log of a process: one event a line on standard error, as key=value, with the node it is of.

Several nodes of a machine share one log: a line is written at once, and says whose it is.
"""

import logging
import sys
from collections.abc import Mapping

import structlog
from structlog.typing import EventDict, WrappedLogger

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
_WORDS = {number: word for word, number in LEVELS.items()}


def set_level(word: str) -> None:
    """Write events of this process from a level of LEVELS on."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[word]))


def level_word() -> str:
    """Return the level of LEVELS that events of this process are written from."""
    return _WORDS[structlog.get_logger().get_effective_level()]


def configure_logs(level: str, node_id: int | None = None) -> None:
    """Write events from `level` on, a name of a level of `logging` in any case; `node_id` is that
    of events that name none themselves. Raises SettingsError for another level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise SettingsError(f"log level: {level!r} is not one of: debug, info, warning, error")

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
            structlog.processors.KeyValueRenderer(
                key_order=["timestamp", "level", "node_id", "event"], drop_missing=True
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
