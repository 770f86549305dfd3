"""The state that the records of the topic add up to: subjects, versions, ids, configs and modes.

A pure function of the records in their order: two registries that have read as far hold the same.
Readers and writers hold the log's lock.
"""

from collections.abc import Iterator
from typing import TypeVar

import structlog

from lakehead.connectors.schema_registry.records import (
    Config,
    ConfigRecord,
    ContextRecord,
    IdsRecord,
    ModeRecord,
    Record,
    SchemaText,
    SubjectCleared,
    SubjectDeletion,
    Version,
    VersionRecord,
)
from lakehead.connectors.schema_registry.subjects import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    Subject,
    beside,
    parse_subject,
)

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"
_log = structlog.get_logger("connectors.schema_registry")

_Held = TypeVar("_Held")
Place = tuple[str, int]
"""A version: its qualified subject and its number."""


class RegistryState:
    """The registry as of a place in the topic."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, Version]] = {}
        self._places: dict[tuple[str, int], dict[Place, None]] = {}  # of an id of a context
        self._ids: dict[tuple[str, SchemaText], int] = {}
        self._referrers: dict[Place, set[Place]] = {}
        self._highest: dict[str, int] = {}
        self._configs: dict[str, Config] = {}
        self._modes: dict[str, str] = {}
        self._contexts: set[str] = set()

    def apply(self, record: Record) -> None:
        """Take in the next record of the topic."""
        match record:
            case VersionRecord():
                self._put(record)
            case ConfigRecord():
                _set(self._configs, record.subject, record.config)
            case ModeRecord():
                _set(self._modes, record.subject, record.mode)
            case SubjectDeletion():
                self._delete(record)
            case ContextRecord():
                self._contexts.add(record.context)
            case IdsRecord():
                for context, number in record.highest.items():
                    self._highest[context] = max(self._highest.get(context, 0), number)
            case SubjectCleared():
                pass

    def _put(self, record: VersionRecord) -> None:
        subject, held = record.subject, record.held
        if held is None:
            self._forget(subject, record.version)
            return
        context = parse_subject(subject).context
        others = self._at(context, held.schema_id, besides=(subject, record.version))
        if others is not None and others.schema != held.schema:
            # Confluent's reader leaves it out too. No registry of ours writes it.
            _log.error("schema_id_taken_twice", subject=subject, id=held.schema_id)
            return
        self._forget(subject, record.version)
        place = (subject, record.version)
        self._versions.setdefault(subject, {})[record.version] = held
        self._places.setdefault((context, held.schema_id), {})[place] = None
        self._ids.setdefault((context, held.schema), held.schema_id)
        self._highest[context] = max(self._highest.get(context, 0), held.schema_id)
        for target in _targets(held):
            self._referrers.setdefault(target, set()).add(place)

    def _at(self, context: str, schema_id: int, besides: Place) -> Version | None:
        for subject, version in self._places.get((context, schema_id), ()):
            if (subject, version) != besides:
                return self._versions[subject][version]
        return None

    def _forget(self, subject: str, version: int) -> None:
        held = self._versions.get(subject, {}).pop(version, None)
        if held is None:
            return
        if not self._versions[subject]:
            del self._versions[subject]
        context = parse_subject(subject).context
        places = self._places[context, held.schema_id]
        del places[subject, version]
        if not places:
            del self._places[context, held.schema_id]
            if self._ids.get((context, held.schema)) == held.schema_id:
                del self._ids[context, held.schema]
        for target in _targets(held):
            self._referrers[target].discard((subject, version))

    def _delete(self, record: SubjectDeletion) -> None:
        for version, held in self._versions.get(record.subject, {}).items():
            if version <= record.last_version:
                self._versions[record.subject][version] = deleted(held)

    # ------------------------------------------------------------------------------ questions

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in their order, the soft deleted ones on request."""
        found = self._versions.get(subject.qualified, {})
        return [found[n] for n in sorted(found) if deleted or not found[n].is_deleted]

    def version(self, subject: Subject, number: int) -> Version | None:
        """Return a version of a subject, soft deleted or not."""
        return self._versions.get(subject.qualified, {}).get(number)

    def subjects(self, prefix: str) -> Iterator[str]:
        """Yield the names of subjects, in order, that begin with a prefix.

        `:*:` in front means any context.
        """
        is_any = prefix.startswith(ANY_CONTEXT)
        wanted = prefix.removeprefix(ANY_CONTEXT) if is_any else prefix
        if not is_any and prefix.startswith(":.:"):
            wanted = prefix[3:]
        for name in sorted(self._versions):
            subject = parse_subject(name)
            if is_any:
                if subject.name.startswith(wanted):
                    yield name
            elif name.startswith(wanted) and (wanted or subject.context == DEFAULT_CONTEXT):
                yield name

    def by_id(self, context: str, schema_id: int) -> list[Version]:
        """Return all versions, soft deleted or not, that an id of a context stands for."""
        places = self._places.get((context, schema_id), {})
        return [self._versions[subject][version] for subject, version in sorted(places)]

    def id_of(self, context: str, schema: SchemaText) -> int | None:
        """Return the id that a schema has in a context."""
        return self._ids.get((context, schema))

    def next_id(self, context: str) -> int:
        """Return an id that was never given."""
        return self._highest.get(context, 0) + 1

    def highest_ids(self) -> dict[str, int]:
        """Return the highest ids that were ever given, by context."""
        return dict(self._highest)

    def referrers(self, subject: Subject, version: int) -> list[Version]:
        """Return the versions, soft deleted or not, whose schemas refer to a version."""
        places = self._referrers.get((subject.qualified, version), set())
        return [self._versions[name][number] for name, number in sorted(places)]

    def contexts(self) -> list[str]:
        """Return all contexts, the default one first."""
        used = {parse_subject(name).context for name in self._versions}
        return [DEFAULT_CONTEXT, *sorted((self._contexts | used) - {DEFAULT_CONTEXT})]

    def config(self, scope: str) -> Config | None:
        """Return what is set for exactly this subject, context, or all (empty)."""
        return self._configs.get(scope)

    def mode(self, scope: str) -> str | None:
        """Return the mode that is set for exactly this subject, context, or all (empty)."""
        return self._modes.get(scope)

    def level_in_scope(self, subject: Subject) -> str:
        """Return the compatibility level that holds for a subject."""
        found = (self._configs.get(scope) for scope in subject.scopes)
        return next((each.level for each in found if each and each.level), DEFAULT_LEVEL)

    def normalizes(self, subject: Subject) -> bool:
        """Return whether schemas of a subject are normalized by default."""
        found = (self._configs.get(scope) for scope in subject.scopes)
        set_ones = (each.normalize for each in found if each and each.normalize is not None)
        return next(set_ones, False)

    def mode_in_scope(self, subject: Subject) -> str:
        """Return the mode that holds for a subject."""
        if self._modes.get("") == "READONLY_OVERRIDE":
            return "READONLY_OVERRIDE"
        found = (self._modes.get(scope) for scope in subject.scopes)
        return next((each for each in found if each), DEFAULT_MODE)


def deleted(held: Version) -> Version:
    """Return a version as it is once soft deleted."""
    return Version(
        subject=held.subject,
        version=held.version,
        schema_id=held.schema_id,
        schema=held.schema,
        is_deleted=True,
    )


def _targets(held: Version) -> Iterator[Place]:
    for reference in held.schema.references:
        yield beside(parse_subject(held.subject), reference.subject).qualified, reference.version


def _set(among: dict[str, _Held], name: str, value: _Held | None) -> None:
    if value is None:
        among.pop(name, None)
    else:
        among[name] = value
