"""Evaluate IAM policies for a request, as AWS documents it within one account.

Follows the IAM user guide: "Policy evaluation logic", "IAM JSON policy elements" (Action,
NotAction, Resource, NotResource, Principal, Condition, Condition operators, Variables) and
"Single-valued vs. multivalued context keys". What is not in it, such as dates, boundaries and
policies of organizations, raises `UnknownElement`: nothing is guessed.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

_STATEMENT = {
    *("Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Principal", "Condition"),
}
_ARN_PARTS = 6
_VARIABLE = re.compile(r"\$\{([^},]+)(?:,\s*'([^']*)')?\}")
_LITERALS = {"*", "?", "$"}


class UnknownElement(Exception):
    """A policy says something that this evaluation does not know."""


class Decision(StrEnum):
    """What becomes of a request. Only `ALLOWED` lets it through."""

    ALLOWED = "allowed"
    IMPLICIT_DENY = "implicitDeny"
    EXPLICIT_DENY = "explicitDeny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. `resource`: an ARN, or `*` for actions that know no resources.

    `context` holds condition keys: a text is a key of one value, a tuple one of several.
    """

    action: str
    resource: str = "*"
    principal: str = ""
    context: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    def value(self, key: str) -> str | tuple[str, ...] | None:
        """Return the key's value, None if it is absent. Names of keys are of any case."""
        for name, value in self.context.items():
            if name.lower() == key.lower():
                return value
        return None


Policy: TypeAlias = Mapping[str, Any]


def decide(
    request: Request, identity: Sequence[Policy], resource: Policy | None = None
) -> Decision:
    """Return what becomes of a request of a role that has the policies `identity`, at a resource
    that has the policy `resource`, both of one account. Raises UnknownElement.
    """
    effects = [found["Effect"] for policy in identity for found in _applying(policy, request)]
    if resource is not None:
        # Naming the account leaves the decision to the identity's own policies.
        effects += [
            found["Effect"]
            for found in _applying(resource, request, names_principals=True)
            if found["Effect"] == "Deny" or not _names_account(found["Principal"])
        ]
    if "Deny" in effects:
        return Decision.EXPLICIT_DENY
    return Decision.ALLOWED if "Allow" in effects else Decision.IMPLICIT_DENY


def decide_by_key(request: Request, identity: Sequence[Policy], key_policy: Policy) -> Decision:
    """Return what becomes of a request at a KMS key: its policy must allow too, or leave it to the
    account. Raises UnknownElement.
    """
    effects = {found["Effect"] for found in _applying(key_policy, request, names_principals=True)}
    if effects == {"Allow"}:
        return decide(request, identity, key_policy)
    return Decision.EXPLICIT_DENY if "Deny" in effects else Decision.IMPLICIT_DENY


def statements(policy: Policy) -> list[Mapping[str, Any]]:
    """Return a policy's statements: a list, or a single one. Raises UnknownElement."""
    if unknown := set(policy) - {"Version", "Id", "Statement"}:
        raise UnknownElement(f"policy with {', '.join(sorted(unknown))}")
    found = policy["Statement"]
    return [found] if isinstance(found, Mapping) else list(found)


def listed(value: Any) -> list[str]:
    """Return a value that may stand alone or in a list."""
    return [value] if isinstance(value, str) else [str(one) for one in value]


def _applying(
    policy: Policy, request: Request, *, names_principals: bool = False
) -> list[Mapping[str, Any]]:
    has_variables = policy.get("Version") == "2012-10-17"
    return [
        found
        for found in statements(policy)
        if _applies(found, request, has_variables, names_principals)
    ]


def _applies(
    found: Mapping[str, Any], request: Request, has_variables: bool, names_principals: bool
) -> bool:
    if unknown := set(found) - _STATEMENT:
        raise UnknownElement(f"statement with {', '.join(sorted(unknown))}")
    if found["Effect"] not in ("Allow", "Deny"):
        raise UnknownElement(f"effect {found['Effect']}")
    if ("Principal" in found) != names_principals:
        raise UnknownElement("a principal belongs into policies of resources, and only there")
    if names_principals and not _is_principal(found["Principal"], request.principal):
        return False
    fill = _filler(request) if has_variables else _as_it_is

    def is_resource(pattern: str) -> bool:
        filled = fill(pattern)
        return filled is not None and arn_matches(filled, request.resource)

    return (
        _chosen(found, "Action", lambda pattern: action_matches(pattern, request.action))
        and _chosen(found, "Resource", is_resource)
        and all(
            _holds(operator, key, listed(values), request, fill)
            for operator, keys in found.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _chosen(found: Mapping[str, Any], name: str, matches: Callable[[str], bool]) -> bool:
    if (name in found) == (f"Not{name}" in found):
        raise UnknownElement(f"a statement has {name} or Not{name}")
    if name in found:
        return any(map(matches, listed(found[name])))
    return not any(map(matches, listed(found[f"Not{name}"])))


def action_matches(pattern: str, action: str) -> bool:
    """Return true if a pattern of actions means this one; case does not matter."""
    return glob(pattern.lower(), action.lower())


def arn_matches(pattern: str, arn: str) -> bool:
    """Return true if a pattern means this ARN: part by part, so that no wildcard crosses a colon
    but in the last part, which may hold colons.
    """
    if pattern == "*" or arn == "*":
        return pattern == "*"
    patterns, parts = pattern.split(":", _ARN_PARTS - 1), arn.split(":", _ARN_PARTS - 1)
    patterns += ["*"] * (_ARN_PARTS - len(patterns))
    return len(parts) == _ARN_PARTS and all(map(glob, patterns, parts))


def glob(pattern: str, text: str) -> bool:
    """Return true if a text matches: `*` stands for any run of characters, `?` for one."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"([*?]|\$\{[*?$]\})", pattern)
    meanings = {"*": ".*", "?": "."} | {f"${{{one}}}": re.escape(one) for one in _LITERALS}
    return re.compile("".join(meanings.get(part, re.escape(part)) for part in parts), re.DOTALL)


# ---------------------------------------------------------------------------------- principals


def _is_principal(element: Any, principal: str) -> bool:
    if element == "*":
        return True
    if unknown := set(element) - {"AWS", "Service"}:
        raise UnknownElement(f"principal {', '.join(sorted(unknown))}")
    named = [*listed(element.get("AWS", ())), *listed(element.get("Service", ()))]
    account = principal.split(":")[4] if principal.startswith("arn:") else ""
    whole = {account, f"arn:aws:iam::{account}:root"} if account else set()
    return any(name in {"*", principal} | whole for name in named)


def _names_account(element: Any) -> bool:
    named = [] if element == "*" else listed(element.get("AWS", ()))
    return bool(named) and all(re.fullmatch(r"\d{12}|arn:[^:]+:iam::\d{12}:root", n) for n in named)


# ---------------------------------------------------------------------------------- conditions

_Fill: TypeAlias = Callable[[str], str | None]


def _as_it_is(text: str) -> str | None:
    return text


def _filler(request: Request) -> _Fill:
    """Return what puts values for policy variables; None: one of them has no value."""

    def fill(text: str) -> str | None:
        missing = False

        def value(found: re.Match[str]) -> str:
            nonlocal missing
            name, default = found[1], found[2]
            if name in _LITERALS:
                return found[0]
            known = request.value(name)
            if isinstance(known, str):
                if _LITERALS & set(known):
                    raise UnknownElement(f"{name} with a wildcard in its value: {known}")
                return known
            missing = missing or default is None
            return default or ""

        filled = _VARIABLE.sub(value, text)
        return None if missing else filled

    return fill


def _holds(operator: str, key: str, wanted: list[str], request: Request, fill: _Fill) -> bool:
    among, _, plain = operator.rpartition(":")
    name = plain.removesuffix("IfExists")
    given = request.value(key)
    if name == "Null":
        return str(given is None).lower() in [one.lower() for one in wanted]
    if name not in _OPERATORS:
        raise UnknownElement(f"condition operator {operator}")
    matches, is_negated = _OPERATORS[name]
    filled = [one for one in map(fill, wanted) if one is not None]

    def one_matches(value: str) -> bool:
        return any(matches(one, value) for one in filled) != is_negated

    if among:
        if among not in ("ForAllValues", "ForAnyValue") or plain != name:
            raise UnknownElement(f"condition operator {operator}")
        values = [value for value in listed(given or ()) if value]
        return (all if among == "ForAllValues" else any)(map(one_matches, values))
    if given is None:
        return is_negated or plain != name
    if not isinstance(given, str):
        raise UnknownElement(f"{operator} on {key}, which has several values: it wants ForAll/Any")
    return one_matches(given)


def _within(network: str, address: str) -> bool:
    inside = ipaddress.ip_network(network)
    found = ipaddress.ip_address(address)
    return found.version == inside.version and found in inside


def _pairs(
    names: Iterable[tuple[str, str]], matches: Callable[[str, str], bool]
) -> dict[str, tuple[Callable[[str, str], bool], bool]]:
    return {
        name: (matches, is_not)
        for plain, no in names
        for name, is_not in ((plain, False), (no, True))
    }


_OPERATORS: dict[str, tuple[Callable[[str, str], bool], bool]] = {
    **_pairs([("StringEquals", "StringNotEquals")], lambda wanted, value: wanted == value),
    **_pairs(
        [("StringEqualsIgnoreCase", "StringNotEqualsIgnoreCase")],
        lambda wanted, value: wanted.lower() == value.lower(),
    ),
    **_pairs([("StringLike", "StringNotLike")], glob),
    **_pairs([("ArnEquals", "ArnNotEquals"), ("ArnLike", "ArnNotLike")], arn_matches),
    **_pairs([("IpAddress", "NotIpAddress")], _within),
    **_pairs(
        [("NumericEquals", "NumericNotEquals")],
        lambda wanted, value: float(value) == float(wanted),
    ),
    "Bool": (lambda wanted, value: wanted.lower() == value.lower(), False),
    "NumericLessThan": (lambda wanted, value: float(value) < float(wanted), False),
    "NumericLessThanEquals": (lambda wanted, value: float(value) <= float(wanted), False),
    "NumericGreaterThan": (lambda wanted, value: float(value) > float(wanted), False),
    "NumericGreaterThanEquals": (lambda wanted, value: float(value) >= float(wanted), False),
}
