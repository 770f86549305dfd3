"""Regular expressions that members subscribe by, as RE2 has them: in time linear in what they are
matched with, and bounded in size (KIP-848).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError

IsVisible = Callable[[str], bool]
"""Returns true for a topic that the client may see."""


def check_regex(regex: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION for a text that RE2 does not take."""
    _compiled(regex)


def matching_topics(
    regexes: Iterable[str], topics: Collection[str], is_visible: IsVisible | None
) -> Mapping[str, frozenset[str]]:
    """Return the topics whose whole name matches each of the regular expressions, without those
    that the client may not see. It takes as long as there are topics, so it is not for the event
    loop.
    """
    found = {}
    for regex in regexes:
        fullmatch = _compiled(regex).fullmatch
        matched = (topic for topic in topics if fullmatch(topic))
        found[regex] = frozenset(
            topic for topic in matched if is_visible is None or is_visible(topic)
        )
    return found


def _compiled(regex: str) -> Any:
    import re2  # only a node with a member that subscribes so loads it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from None
