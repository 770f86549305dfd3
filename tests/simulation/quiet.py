"""Worlds are loud: thousands of warnings of a store that is meant to fail."""

import structlog


def silence_logs() -> None:
    """Let only critical messages through."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
