"""The principal of a client certificate, as Kafka makes it: the subject in RFC 2253's form, as
Java's X500Principal writes it, through `ssl.principal.mapping.rules` (KIP-371).
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lakehead.broker.security.principal import USER, KafkaPrincipal
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from cryptography import x509

SETTING = "ssl.principal.mapping.rules"
_RULE = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER = re.compile(_RULE)
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Those of RFC 2253, by their numbers in X.520 and RFC 4519. Java writes any other attribute as its
number and its DER in hexadecimal.
"""
_ESCAPED = frozenset(',+"\\<>;')

Rule = Callable[[str], str | None]
"""Returns the name that a rule makes of a subject, or None if the rule does not apply."""


class NoMatchingRule(ValueError):
    """No rule applies to a subject."""


class SslPrincipalMapper:
    """Kafka's rules for names. Raises SettingsError for rules that Kafka refuses."""

    def __init__(self, rules: str) -> None:
        self.rules = rules
        self._rules: list[Rule] = [*_parsed(rules)]

    def name(self, subject: str) -> str:
        """Return the name of a subject. Raises NoMatchingRule."""
        for rule in self._rules:
            found = rule(subject)
            if found is not None:
                return found
        raise NoMatchingRule(f"no rule of {SETTING} applies to {subject!r}")

    def principal(self, certificate: bytes) -> KafkaPrincipal:
        """Return the principal of a certificate (DER). Raises NoMatchingRule, and ValueError for a
        certificate that is not readable.
        """
        from cryptography import x509

        try:
            subject = distinguished_name(x509.load_der_x509_certificate(certificate).subject)
        except Exception as error:  # noqa: BLE001 - OpenSSL lets in what this library refuses
            raise ValueError(f"the certificate cannot be read: {error}") from None
        return KafkaPrincipal(USER, self.name(subject))


def distinguished_name(name: "x509.Name") -> str:
    """Return a name in RFC 2253's form, the last part first."""
    return ",".join(
        "+".join(map(_attribute, sorted(part, key=lambda one: one.oid.dotted_string)))
        if len(list(part)) > 1
        else _attribute(next(iter(part)))
        for part in reversed(name.rdns)
    )


def _attribute(attribute: "x509.NameAttribute[str | bytes]") -> str:
    keyword = _KEYWORDS.get(attribute.oid.dotted_string)
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{attribute.oid.dotted_string}=#{_der(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _der(attribute: "x509.NameAttribute[str | bytes]") -> bytes:
    """Return the DER of an attribute's value: the end of that of a name which has it alone."""
    from cryptography import x509

    der = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # the name, its only part, the pair of number and value
        der = _content(der)
    return der[2 + der[1] :]  # after the number, which is short


def _content(der: bytes) -> bytes:
    """Return the content of the first element."""
    if der[1] < 0x80:
        return der[2:]
    return der[2 + (der[1] & 0x7F) :]


def _escaped(value: str) -> str:
    escaped = "".join(f"\\{one}" if one in _ESCAPED else one for one in value)
    if escaped.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped


def _parsed(rules: str) -> Iterator[Rule]:
    for found in _SPLITTER.finditer(rules.strip()):
        text = found[1]
        match = _PARSER.match(text)
        assert match is not None, "the empty rule is one"
        if match.end() != len(text):
            raise SettingsError(
                f"{SETTING}: {text!r} is not a rule: write RULE:pattern/replacement/, with L or U "
                "at its end for small or capital letters, or DEFAULT"
            )
        if match[1] is not None:
            yield lambda subject: subject
        elif match[2] is not None:
            yield _rule(match[2], match[4], match[6])


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"{SETTING}: {pattern!r} is not a pattern: {error}") from None
    parts = _replacement(replacement, compiled.groups)

    def apply(subject: str) -> str | None:
        if compiled.fullmatch(subject) is None:
            return None
        name = compiled.sub(
            lambda match: "".join(
                part if isinstance(part, str) else match[part] or "" for part in parts
            ),
            subject,
        )
        return name.lower() if case == "L" else name.upper() if case == "U" else name

    return apply


def _replacement(text: str, groups: int) -> list[str | int]:
    """Return the parts of a replacement by Java's grammar: texts, and numbers of groups. A number
    that is no group's is a text, as Kafka has it.
    """
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        one = text[position]
        if one == "\\" and position + 1 < len(text):
            parts.append(text[position + 1])
            position += 2
        elif one == "$" and text[position + 1 : position + 2].isdecimal():
            position += 1
            number = int(text[position])
            end = position + 1
            while (
                end < len(text) and text[end].isdecimal() and number * 10 + int(text[end]) <= groups
            ):
                number = number * 10 + int(text[end])
                end += 1
            if number > groups:
                parts.append(f"${text[position:end]}")
            else:
                parts.append(number)
            position = end
        else:
            parts.append(one)
            position += 1
    return parts
