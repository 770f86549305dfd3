"""The JAAS configuration of a listener, in the form of Kafka's setting `sasl.jaas.config`::

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="admin" password="..." user_alice="...";

Words are separated by blanks; values stand in quotes if they are not words, with Java's escapes.
Comments are those of Java. The grammar is that of Kafka's JaasConfig, a Java StreamTokenizer.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_PACKAGE = "org.apache.kafka.common.security"
PLAIN_MODULE = f"{_PACKAGE}.plain.PlainLoginModule"
SCRAM_MODULE = f"{_PACKAGE}.scram.ScramLoginModule"
OAUTHBEARER_MODULE = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule"
_FLAGS = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
_TOKEN = re.compile(
    r"(?P<blank>[\x00-\x20]+|//[^\r\n]*|/\*.*?(?:\*/|$)|/[^\r\n]*)"
    r"|(?P<word>[A-Za-z_$\x80-\U0010ffff][-A-Za-z0-9_$.\x80-\U0010ffff]*)"
    r"|(?P<number>[-.0-9]+)"
    r"|(?P<quote>[\"'])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")


class JaasError(ValueError):
    """The text is not a JAAS configuration. The message holds no value of it."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry: the class of a login module and its options, which may be secret."""

    name: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Return the one entry of a configuration. Raises JaasError."""
    tokens = _tokens(text)
    entries = []
    for kind, value in tokens:
        entries.append(_entry(kind, value, tokens))
        if len(entries) > 1:
            raise JaasError("there are several login modules, and one is allowed")
    if not entries:
        raise JaasError("there is no login module")
    return entries[0]


def _entry(kind: str, module: str, tokens: Iterator[tuple[str, str]]) -> LoginModule:
    if kind not in {"word", "text"}:
        raise JaasError("it does not begin with the name of a login module")
    _, flag = next(tokens, ("", ""))
    if flag.upper() not in _FLAGS:
        raise JaasError(f"after {module} follows no control flag such as required")
    options: dict[str, str] = {}
    for form, key in tokens:
        if (form, key) == ("other", ";"):
            return LoginModule(module, options)
        equals, value = next(tokens, ("", "")), next(tokens, ("", ""))
        if form not in {"word", "text"} or equals != ("other", "="):
            raise JaasError(f"the options of {module} are not all written key=value")
        if value[0] not in {"word", "text"}:
            raise JaasError(f"option {key} of {module} has no value, or one that needs quotes")
        options[key] = value[1]
    raise JaasError(f"the options of {module} do not end with a semicolon")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield (word, text, number or other; characters)."""
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None, "the last alternative is any character"
        position, kind = found.end(), found.lastgroup
        if kind == "quote":
            position, value = _quoted(text, position, found[0])
            yield "text", value
        elif kind != "blank":
            yield str(kind), found[0]


def _quoted(text: str, position: int, quote: str) -> tuple[int, str]:
    """Return the end of a quoted text that begins at `position`, and the text."""
    characters: list[str] = []
    while position < len(text):
        char = text[position]
        position += 1
        if char == quote:
            return position, "".join(characters)
        if char in "\r\n":
            break
        if char == "\\" and position < len(text):
            octal = _OCTAL.match(text, position)
            if octal is not None:
                char, position = chr(int(octal[0], 8)), octal.end()
            else:
                char, position = _ESCAPES.get(text[position], text[position]), position + 1
        characters.append(char)
    raise JaasError("a quoted text does not end")
