"""Secrets are hidden in texts that leave the machine: values that are known to be secret, and what
looks like one.
"""

import re
from collections.abc import Iterable, Mapping

from lakehead.storage.metadata.hidden_fields import HIDDEN

_LEAST = 6
"""A shorter value is a part of other words too often."""
_SECRET_NAME = re.compile(
    r"(^|[_.-])(secret|password|passwd|pwd|tokens?|credentials?|apikey|key)([_.-](id|key))?$",
    re.IGNORECASE,
)
_SECRET_WORDS = rb"secret|password|passwd|token|signature|credential|(?:access|api|account)[_-]?key"
_LOOKS_SECRET = (
    # user:password@host of a URL
    (re.compile(rb"(?<=://)[^/\s@\"'\\]+(?=@)"), HIDDEN.encode()),
    # a parameter of a URL
    (
        re.compile(rb"([?&][\w.-]*(?:%s)[\w.-]*=)[^&\s\"'\\#]+" % _SECRET_WORDS, re.IGNORECASE),
        rb"\1" + HIDDEN.encode(),
    ),
    # a header of HTTP
    (
        re.compile(rb"(\bauthorization\W{1,4}(?:basic|bearer)\s+)[^\s\"']+", re.IGNORECASE),
        rb"\1" + HIDDEN.encode(),
    ),
    # password="..." of JAAS, and JSON in a text
    (
        re.compile(
            rb"((?:%s)[\w.-]*\\*[\"']?\s*[=:]\s*\\*[\"'])[^\"'\\\s]+" % _SECRET_WORDS, re.IGNORECASE
        ),
        rb"\1" + HIDDEN.encode(),
    ),
)


def secret_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables whose names are those of secrets, as AWS_SECRET_ACCESS_KEY."""
    return [value for name, value in environment.items() if _SECRET_NAME.search(name)]


class Redaction:
    """Hides these secrets, and what looks like one, in the bytes of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {one.strip() for text in secrets for one in (text, *text.splitlines())}
        longest_first = sorted((one for one in known if len(one) >= _LEAST), key=len, reverse=True)
        self._known = [one.encode() for one in longest_first]

    def hidden(self, body: bytes) -> bytes:
        """Return a text without its secrets."""
        for secret in self._known:
            body = body.replace(secret, HIDDEN.encode())
        for pattern, replacement in _LOOKS_SECRET:
            body = pattern.sub(replacement, body)
        return body
