"""The routes of the interface: from a method and a path to a call of the registry, and its
response.

Blocking: the service calls `respond` on a thread. Responses are JSON of Confluent's shape, except
for the two with a schema's bare text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakehead.connectors.schema_registry import errors
from lakehead.connectors.schema_registry.access import ADMIN, ANYONE, READ, WRITE, Caller
from lakehead.connectors.schema_registry.errors import RegistryError
from lakehead.connectors.schema_registry.records import (
    AVRO,
    KINDS,
    Config,
    Version,
    reference_fields,
)
from lakehead.connectors.schema_registry.registry import Registry
from lakehead.connectors.schema_registry.requested import (
    read_config,
    read_mode,
    read_schema,
    read_version,
)
from lakehead.connectors.schema_registry.state import RegistryState
from lakehead.connectors.schema_registry.subjects import (
    ANY_CONTEXT,
    Subject,
    beside,
    checked_subject,
    parse_subject,
)

_ID_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request: its path as segments, its parameters, its body as JSON (None: none), and the
    client that sent it.
    """

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: Any
    caller: Caller = ANYONE

    def flag(self, name: str) -> bool:
        """Return whether a parameter is true."""
        return self.query.get(name, "").lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is a number. Raises RegistryError."""
        try:
            return int(self.query.get(name, default))
        except ValueError:
            raise errors.malformed_request(f"{name} is not a number") from None

    def page(self, items: Sequence[Any]) -> list[Any]:
        """Return the part of a list that `offset` and `limit` select."""
        first, most = max(0, self.number("offset", 0)), self.number("limit", -1)
        return list(items[first:] if most < 0 else items[first : first + most])


class Routes:
    """Serves calls from a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def respond(self, call: Call) -> Any:
        """Return the response to a call. Raises RegistryError."""
        call = _in_context(call)
        match call.path:
            case () if call.method == "GET":
                return {}
            case ("subjects", *rest):
                return self._subjects(call, tuple(rest))
            case ("schemas", *rest):
                return self._schemas(call, tuple(rest))
            case ("compatibility", "subjects", subject, "versions", *rest):
                call.caller.require(READ, parse_subject(subject).qualified)
                return self._compatibility(call, parse_subject(subject), tuple(rest))
            case ("config",) | ("config", _):
                return self._configs(call, _scope(call.path[1:]))
            case ("mode",) | ("mode", _):
                return self._modes(call, _scope(call.path[1:]))
            case ("contexts",) if call.method == "GET":
                return call.page(self._contexts(call))
            case ("v1", "metadata", "id") if call.method == "GET":
                clusters = {"kafka-cluster": self._registry.log.cluster_id()}
                return {"scope": {"path": [], "clusters": clusters}, "id": ""}
            case ("v1", "metadata", "version") if call.method == "GET":
                return {"version": "", "commitId": ""}
        raise no_such_call(call)

    def _contexts(self, call: Call) -> list[str]:
        def read(state: RegistryState) -> list[str]:
            shown = {
                parse_subject(name).context
                for name in state.subjects(ANY_CONTEXT)
                if call.caller.may(READ, name)
            }
            every = call.caller.may(READ, "")
            return [context for context in state.contexts() if every or context in shown]

        return self._registry.query(read)

    # ----------------------------------------------------------------------------- subjects

    def _subjects(self, call: Call, rest: tuple[str, ...]) -> Any:
        if rest:
            call.caller.require(_role(call.method, rest), parse_subject(rest[0]).qualified)
        match call.method, rest:
            case "GET", ():
                return call.page(self._subject_names(call))
            case "POST", (name,):
                return self._lookup(call, parse_subject(name))
            case "DELETE", (name,):
                subject = parse_subject(name)
                return self._registry.delete_subject(subject, permanent=call.flag("permanent"))
            case "GET", (name, "versions"):
                return call.page(self._version_numbers(call, parse_subject(name)))
            case "POST", (name, "versions"):
                given, subject = read_schema(call.body), checked_subject(name)
                for reference in given.references:
                    call.caller.require(READ, beside(subject, reference.subject).qualified)
                normalize = call.flag("normalize")
                return {"id": self._registry.register(subject, given, normalize=normalize)}
            case "GET", (name, "metadata"):
                return self._by_metadata(call, parse_subject(name))
            case method, (name, "versions", number, *last):
                version = read_version(number)
                return self._one_version(call, method, parse_subject(name), version, tuple(last))
        raise no_such_call(call)

    def _one_version(
        self, call: Call, method: str, subject: Subject, number: int, last: tuple[str, ...]
    ) -> Any:
        is_deleted = call.flag("deleted")
        match method, last:
            case "GET", ():
                found = self._registry.version(subject, number, deleted=is_deleted)
                return self._version_fields(call, found)
            case "GET", ("schema",):
                found = self._registry.version(subject, number, deleted=is_deleted)
                return BareText(self._text(call, found))
            case "GET", ("referencedby",):
                found = self._registry.version(subject, number, deleted=True)
                return self._referrers(call, subject, found.version)
            case "DELETE", ():
                permanent = call.flag("permanent")
                return self._registry.delete_version(subject, number, permanent=permanent)
        raise no_such_call(call)

    def _referrers(self, call: Call, subject: Subject, number: int) -> list[int]:
        found = self._registry.query(lambda state: state.referrers(subject, number))
        wanted = (
            each
            for each in found
            if (call.flag("deleted") or not each.is_deleted) and call.caller.may(READ, each.subject)
        )
        return call.page(sorted({each.schema_id for each in wanted}))

    def _subject_names(self, call: Call) -> list[str]:
        prefix = call.query.get("subjectPrefix", ANY_CONTEXT)

        def read(state: RegistryState) -> list[str]:
            return [
                name
                for name in state.subjects(prefix)
                if call.caller.may(READ, name)
                and _is_wanted(call, state.versions(parse_subject(name), deleted=True))
            ]

        return self._registry.query(read)

    def _version_numbers(self, call: Call, subject: Subject) -> list[int]:
        only, too = call.flag("deletedOnly"), call.flag("deleted")

        def read(state: RegistryState) -> list[int]:
            versions = state.versions(subject, deleted=only or too)
            if not versions:
                raise errors.subject_not_found(subject.qualified)
            return [each.version for each in versions if each.is_deleted or not only]

        return self._registry.query(read)

    def _lookup(self, call: Call, subject: Subject) -> dict[str, Any]:
        found = self._registry.lookup(
            subject,
            read_schema(call.body),
            normalize=call.flag("normalize"),
            deleted=call.flag("deleted"),
        )
        return self._version_fields(call, found)

    def _by_metadata(self, call: Call, subject: Subject) -> dict[str, Any]:
        key, value = call.query.get("key", ""), call.query.get("value", "")

        def read(state: RegistryState) -> Version:
            versions = state.versions(subject, deleted=call.flag("deleted"))
            if not versions:
                raise errors.subject_not_found(subject.qualified)
            for each in reversed(versions):
                held = json.loads(each.schema.metadata or "{}").get("properties")
                if isinstance(held, dict) and key in held and str(held[key]) == value:
                    return each
            raise errors.schema_not_found()

        return self._version_fields(call, self._registry.query(read))

    # ------------------------------------------------------------------------------ schemas

    def _schemas(self, call: Call, rest: tuple[str, ...]) -> Any:
        match call.method, rest:
            case "GET", ():
                return call.page(self._every_version(call))
            case "GET", ("types",):
                return list(KINDS)
            case "GET", ("ids", number, *last):
                return self._by_id(call, number, tuple(last))
        raise no_such_call(call)

    def _by_id(self, call: Call, text: str, last: tuple[str, ...]) -> Any:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _ID_MAX):
            raise no_such_call(call)
        named = call.query.get("subject")
        subject = parse_subject(named) if named else None
        found = self._registry.by_id(int(text), subject)
        versions = [each for each in found if call.caller.may(READ, each.subject)]
        if not versions:
            raise errors.forbidden(call.caller.name, READ, f"of schema {text}")
        shown = [
            each
            for each in versions
            if (call.flag("deleted") or not each.is_deleted)
            and (subject is None or not subject.name or each.subject == subject.qualified)
        ]
        match last:
            case ():
                return self._id_fields(call, versions[0])
            case ("schema",):
                return BareText(self._text(call, versions[0]))
            case ("subjects",):
                return call.page(list(dict.fromkeys(each.subject for each in shown)))
            case ("versions",):
                pairs = [{"subject": each.subject, "version": each.version} for each in shown]
                return call.page(pairs)
        raise no_such_call(call)

    def _id_fields(self, call: Call, version: Version) -> dict[str, Any]:
        fields = self._version_fields(call, version)
        for name in ("subject", "version", "id"):
            del fields[name]
        if call.flag("fetchMaxId"):
            context = parse_subject(version.subject).context
            fields["maxId"] = self._registry.query(lambda state: state.next_id(context) - 1)
        return fields

    def _every_version(self, call: Call) -> list[dict[str, Any]]:
        prefix = call.query.get("subjectPrefix", ANY_CONTEXT)

        def read(state: RegistryState) -> list[Version]:
            found: list[Version] = []
            for name in state.subjects(prefix):
                if not call.caller.may(READ, name):
                    continue
                versions = state.versions(parse_subject(name), deleted=call.flag("deleted"))
                found += versions[-1:] if call.flag("latestOnly") else versions
            return found

        versions = self._registry.query(read)
        return [self._version_fields(call, each) for each in call.page(versions)]

    def _version_fields(self, call: Call, version: Version) -> dict[str, Any]:
        schema = version.schema
        fields: dict[str, Any] = {
            "subject": version.subject,
            "version": version.version,
            "id": version.schema_id,
        }
        if schema.kind != AVRO:
            fields["schemaType"] = schema.kind
        if schema.references:
            fields["references"] = [reference_fields(each) for each in schema.references]
        if schema.metadata:
            fields["metadata"] = json.loads(schema.metadata)
        if schema.rule_set:
            fields["ruleSet"] = json.loads(schema.rule_set)
        return fields | {"schema": self._text(call, version)}

    def _text(self, call: Call, version: Version) -> str:
        """The text of a schema; of Protobuf with format=serialized the descriptor in base64."""
        if version.schema.kind == "PROTOBUF" and call.query.get("format") == "serialized":
            from lakehead.connectors.schema_registry.protobuf_schema import serialized

            return serialized(self._registry.parsed(version))
        return version.schema.text

    # ---------------------------------------------------------- compatibility, configs, modes

    def _compatibility(self, call: Call, subject: Subject, rest: tuple[str, ...]) -> Any:
        if call.method != "POST" or len(rest) > 1:
            raise no_such_call(call)
        found = self._registry.compatibility(
            subject,
            read_version(rest[0]) if rest else None,
            read_schema(call.body),
            normalize=call.flag("normalize"),
        )
        response: dict[str, Any] = {"is_compatible": not found}
        return response | ({"messages": found} if call.flag("verbose") else {})

    def _configs(self, call: Call, scope: str) -> Any:
        _require_scope(call, scope)
        match call.method:
            case "GET":
                is_global = call.flag("defaultToGlobal")
                return _config_fields(self._registry.config(scope, default_to_global=is_global))
            case "PUT":
                given = read_config(call.body)
                self._registry.set_config(_checked_scope(scope), given)
                return _config_fields(given, level_name="compatibility")
            case "DELETE":
                return _config_fields(self._registry.delete_config(scope))
        raise no_such_call(call)

    def _modes(self, call: Call, scope: str) -> Any:
        _require_scope(call, scope)
        match call.method:
            case "GET":
                is_global = call.flag("defaultToGlobal")
                return {"mode": self._registry.mode(scope, default_to_global=is_global)}
            case "PUT":
                mode = read_mode(call.body)
                self._registry.set_mode(_checked_scope(scope), mode, force=call.flag("force"))
                return {"mode": mode}
            case "DELETE" if scope:
                return {"mode": self._registry.delete_mode(scope)}
        raise no_such_call(call)


@dataclass(frozen=True, slots=True)
class BareText:
    """A response that is a schema's bare text, without JSON around it."""

    text: str


def no_such_call(call: Call) -> RegistryError:
    """The interface has no such path, or not by this method."""
    return RegistryError(404, 404, f"HTTP 404 Not Found: {call.method} /{'/'.join(call.path)}")


def _role(method: str, rest: tuple[str, ...]) -> str:
    """Return the role that a call about a subject needs."""
    if method == "DELETE":
        return ADMIN
    return WRITE if method == "POST" and rest[1:] == ("versions",) else READ


def _require_scope(call: Call, scope: str) -> None:
    """Raise RegistryError unless the client may read, or set, the config of a scope. Each client
    may read that of all subjects, since it says how each of them is treated.
    """
    if call.method != "GET":
        call.caller.require(ADMIN, scope)
    elif parse_subject(scope).name:
        call.caller.require(READ, scope)


def _in_context(call: Call) -> Call:
    """A call under /contexts/NAME/ is the same call about what lies in that context."""
    match call.path:
        case ("contexts", name, first, *rest):
            context = name if name.startswith(".") else f".{name}"
            query = dict(call.query)
            path = [first, *rest]
            at = {"subjects": 1, "config": 1, "mode": 1, "compatibility": 2}.get(first)
            if first == "schemas":
                inside = parse_subject(query.get("subject", "")).name
                query["subject"] = Subject(context, inside).qualified
                query["subjectPrefix"] = f":{context}:{query.get('subjectPrefix', '')}"
            elif at is not None and len(path) > at:
                path[at] = Subject(context, parse_subject(path[at]).name).qualified
            elif first == "subjects":
                query["subjectPrefix"] = f":{context}:{query.get('subjectPrefix', '')}"
            elif first in ("config", "mode"):
                path.append(Subject(context, "").qualified)
            return replace(call, path=tuple(path), query=query)
    return call


def _scope(path: tuple[str, ...]) -> str:
    """The scope of a config or mode: a subject, a context, or all."""
    return parse_subject(path[0]).qualified if path else ""


def _checked_scope(scope: str) -> str:
    if scope and not all(character.isprintable() for character in scope):
        raise errors.invalid_subject(scope)
    return scope


def _is_wanted(call: Call, versions: Sequence[Version]) -> bool:
    is_live = any(not each.is_deleted for each in versions)
    if call.flag("deletedOnly"):
        return not is_live
    return is_live or call.flag("deleted")


def _config_fields(config: Config, level_name: str = "compatibilityLevel") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if config.level is not None:
        fields[level_name] = config.level
    if config.normalize is not None:
        fields["normalize"] = config.normalize
    return fields
