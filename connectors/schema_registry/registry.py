"""The schema registry: registers, finds, compares and deletes schemas, and sets configs and modes.

Requests are served from the records that this process has read. "Not found" is a fact that clients
keep, so it is returned only after the topic was read to its end.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lakehead.connectors.schema_registry import errors
from lakehead.connectors.schema_registry.compatibility import Earlier, problems, schema_type
from lakehead.connectors.schema_registry.errors import InvalidSchema, RegistryError
from lakehead.connectors.schema_registry.log import Decision, SchemaLog
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.records import (
    Config,
    ConfigRecord,
    ContextRecord,
    IdsRecord,
    ModeRecord,
    Record,
    SchemaReference,
    SchemaText,
    SubjectCleared,
    SubjectDeletion,
    Version,
    VersionRecord,
)
from lakehead.connectors.schema_registry.requested import LATEST, RequestedSchema
from lakehead.connectors.schema_registry.state import DEFAULT_LEVEL, RegistryState, deleted
from lakehead.connectors.schema_registry.subjects import (
    DEFAULT_CONTEXT,
    Subject,
    beside,
    parse_subject,
)

_Result = TypeVar("_Result")
_PARSED_BYTES_MAX = 8 << 20
"""A parsed schema takes ten times its text and more."""
_REFERENCES_MAX = 1000
READ_ONLY = ("READONLY", "READONLY_OVERRIDE")


class ParsedSchemas:
    """The schemas that were parsed last, as many as have `bytes_max` characters in their texts and
    in those that they refer to. For many threads.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Any, ...], tuple[ParsedSchema, int]] = OrderedDict()
        self._bytes = 0

    def get(
        self, kind: str, text: str, others: tuple[NamedText, ...], normalize: bool
    ) -> ParsedSchema:
        """Return a schema, parsed now or before. Raises InvalidSchema."""
        key = (kind, text, others, normalize)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found[0]
        parsed = schema_type(kind).parse(text, others, normalize)
        size = len(text) + sum(len(other.text) for other in others)
        if size <= self._bytes_max:
            self._hold(key, parsed, size)
        return parsed

    def _hold(self, key: tuple[Any, ...], parsed: ParsedSchema, size: int) -> None:
        with self._lock:
            if key in self._held:
                return
            self._held[key] = parsed, size
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed


class Registry:
    """The registry over its log. Methods block, and may be called by many threads.

    All raise RegistryError.
    """

    def __init__(self, log: SchemaLog) -> None:
        self.log = log
        self._schemas = ParsedSchemas(_PARSED_BYTES_MAX)

    def query(self, read: Callable[[RegistryState], _Result]) -> _Result:
        """Return the result of a query on the state; if it finds nothing, read the topic to its end
        and run it again.
        """
        try:
            with self.log.lock:
                return read(self.log.state)
        except RegistryError as error:
            if error.status != 404:
                raise
        self.log.catch_up()
        with self.log.lock:
            return read(self.log.state)

    # -------------------------------------------------------------------------- registering

    def register(self, subject: Subject, given: RequestedSchema, *, normalize: bool) -> int:
        """Make a schema a version of a subject, and return its id: the one it has, or a new one."""
        if given.schema_id is None and given.version is None:
            with self.log.lock:
                normalizes = normalize or self.log.state.normalizes(subject)
            schema, _ = self._canonical(subject, given, normalizes)
            with self.log.lock:
                held = _held(self.log.state.versions(subject), schema)
            if held is not None:
                return held.schema_id
        return self.log.write(lambda: self._registration(subject, given, normalize))

    def _registration(
        self, subject: Subject, given: RequestedSchema, normalize: bool
    ) -> Decision[int]:
        with self.log.lock:
            state = self.log.state
            mode, level = state.mode_in_scope(subject), state.level_in_scope(subject)
            normalizes = normalize or state.normalizes(subject)
            versions = state.versions(subject, deleted=True)
        _check_mode(subject, given, mode)
        schema, parsed = self._canonical(subject, given, normalizes)
        live = [version for version in versions if not version.is_deleted]
        held = _held(live, schema)
        is_wanted = held is not None and given.schema_id in (None, held.schema_id)
        if held is not None and is_wanted and given.version in (None, held.version):
            return (), held.schema_id
        if mode != "IMPORT":
            found = self._problems(level, parsed, live)
            if found:
                raise errors.incompatible(subject.qualified, f"[{', '.join(found)}]")
        number = _new_version(given, versions, is_import=mode == "IMPORT")
        with self.log.lock:
            state = self.log.state
            schema_id = _new_id(state, subject, schema, given.schema_id)
            is_known = subject.context in state.contexts()
            superseded = list(_superseded(state, subject, versions, schema_id, number))
            is_replaced = any(each.version == number for each in versions)
            highest = [IdsRecord(highest=state.highest_ids())] if is_replaced else []
        return [
            *([] if is_known else [ContextRecord(context=subject.context)]),
            *superseded,
            *highest,
            VersionRecord(
                subject=subject.qualified,
                version=number,
                held=Version(
                    subject=subject.qualified, version=number, schema_id=schema_id, schema=schema
                ),
            ),
        ], schema_id

    def _canonical(
        self, subject: Subject, given: RequestedSchema, normalize: bool
    ) -> tuple[SchemaText, ParsedSchema]:
        """A schema in the one form that is kept and compared: what it refers to as the latest
        version by its number, so that it means the same for ever.
        """
        references = self._numbered(subject, given.references)
        others = self._others(subject, references)
        try:
            parsed = self._schemas.get(given.kind, given.text, others, normalize)
        except InvalidSchema as error:
            raise errors.invalid_schema(f"Invalid schema: {error}") from None
        text = SchemaText(
            kind=given.kind,
            text=parsed.text,
            references=references,
            metadata=given.metadata,
            rule_set=given.rule_set,
        )
        return text, parsed

    def _numbered(
        self, subject: Subject, references: tuple[SchemaReference, ...]
    ) -> tuple[SchemaReference, ...]:
        """Return references with the number of each version. Raises RegistryError."""
        if all(reference.version != LATEST for reference in references):
            return references

        def read(state: RegistryState) -> tuple[SchemaReference, ...]:
            found = [(reference, _referred(state, subject, reference)) for reference in references]
            return tuple(
                replace(reference, version=version.version) for reference, version in found
            )

        try:
            return self.query(read)
        except RegistryError as error:
            raise errors.invalid_schema(f"Invalid schema: {error}") from None

    def _others(
        self, subject: Subject, references: Sequence[SchemaReference]
    ) -> tuple[NamedText, ...]:
        """The schemas that a schema refers to, each after those it refers to itself."""
        found: dict[str, NamedText] = {}

        def follow(state: RegistryState) -> None:
            found.clear()
            for reference, version in _reached(state, subject, references, set()):
                named = NamedText(name=reference.name, text=version.schema.text)
                found.setdefault(reference.name, named)

        try:
            self.query(follow)
        except RegistryError as error:
            raise errors.invalid_schema(f"Invalid schema: {error}") from None
        return tuple(found.values())

    def parsed(self, version: Version) -> ParsedSchema:
        """Return a registered schema, read."""
        schema = version.schema
        others = self._others(parse_subject(version.subject), schema.references)
        try:
            return self._schemas.get(schema.kind, schema.text, others, False)
        except InvalidSchema as error:
            raise errors.invalid_schema(
                f"Version {version.version} of subject {version.subject} cannot be read: {error}"
            ) from None

    # ---------------------------------------------------------------------------- comparing

    def _problems(self, level: str, parsed: ParsedSchema, versions: Sequence[Version]) -> list[str]:
        if level == "NONE" or not versions:
            return []
        if not level.endswith("_TRANSITIVE"):
            versions = versions[-1:]
        earlier = [
            Earlier(version=version.version, schema=self.parsed(version)) for version in versions
        ]
        try:
            return problems(level, parsed, earlier)
        except InvalidSchema as error:
            raise errors.invalid_schema(f"Invalid schema: {error}") from None
        except RecursionError:
            raise errors.invalid_schema(
                "Invalid schema: its types are too deep in one another to be compared"
            ) from None

    def compatibility(
        self, subject: Subject, number: int | None, given: RequestedSchema, *, normalize: bool
    ) -> list[str]:
        """Return why a schema is not compatible with a version of a subject, or (None) with those
        that its level is about; empty: it is.
        """

        def read(state: RegistryState) -> tuple[str, bool, list[Version]]:
            versions = state.versions(subject)
            if number is not None and number != LATEST:
                versions = [each for each in versions if each.version == number]
                if not versions:
                    raise errors.version_not_found(number)
            elif number is not None:
                versions = versions[-1:]
            return state.level_in_scope(subject), state.normalizes(subject), versions

        level, normalizes, versions = self.query(read)
        _, parsed = self._canonical(subject, given, normalize or normalizes)
        return self._problems(level, parsed, versions)

    # ------------------------------------------------------------------------------ finding

    def lookup(
        self, subject: Subject, given: RequestedSchema, *, normalize: bool, deleted: bool
    ) -> Version:
        """Return the version that a schema is of a subject."""

        def read(state: RegistryState) -> Version:
            if not state.versions(subject, deleted=deleted):
                raise errors.subject_not_found(subject.qualified)
            schema, _ = canonical
            found = _held(state.versions(subject, deleted=deleted), schema)
            if found is None:
                raise errors.schema_not_found()
            return found

        def exists(state: RegistryState) -> bool:
            if not state.versions(subject, deleted=deleted):
                raise errors.subject_not_found(subject.qualified)
            return state.normalizes(subject)

        normalizes = self.query(exists)
        canonical = self._canonical(subject, given, normalize or normalizes)
        return self.query(read)

    def version(self, subject: Subject, number: int, *, deleted: bool) -> Version:
        """Return a version of a subject, or its last one."""

        def read(state: RegistryState) -> Version:
            versions = state.versions(subject, deleted=deleted)
            if not versions:
                raise errors.subject_not_found(subject.qualified)
            if number == LATEST:
                return versions[-1]
            found = [each for each in versions if each.version == number]
            if not found:
                raise errors.version_not_found(number)
            return found[0]

        return self.query(read)

    def by_id(self, schema_id: int, subject: Subject | None) -> list[Version]:
        """Return the versions, soft deleted or not, that have an id.

        An id is of a context: that of the subject, or for one without a context the first where it
        has the id, else the default one.
        """

        def read(state: RegistryState) -> list[Version]:
            home = subject.context if subject else DEFAULT_CONTEXT
            here = state.by_id(home, schema_id)
            if subject is not None and home == DEFAULT_CONTEXT:
                for context in state.contexts():
                    name = Subject(context, subject.name).qualified
                    found = state.by_id(context, schema_id)
                    if any(each.subject == name for each in found):
                        return found
            if not here:
                raise errors.schema_not_found(schema_id)
            return here

        return self.query(read)

    # ------------------------------------------------------------------------------ deleting

    def delete_version(self, subject: Subject, number: int, *, permanent: bool) -> int:
        """Delete a version, softly or for good; return its number."""

        def decide() -> Decision[int]:
            with self.log.lock:
                state = self.log.state
                found = _chosen(state, subject, number)
                _check_writable(state, subject)
                _check_unreferenced(state, subject, found, for_good=permanent)
                if not permanent:
                    if found.is_deleted:
                        raise errors.version_soft_deleted(subject.qualified, found.version)
                    is_last = len(state.versions(subject)) == 1
                    records = [_put(deleted(found)), *(_unset(state, subject) if is_last else ())]
                    return records, found.version
                if not found.is_deleted:
                    raise errors.version_not_soft_deleted(subject.qualified, found.version)
                gone = VersionRecord(subject=found.subject, version=found.version, held=None)
                return [gone, IdsRecord(highest=state.highest_ids())], found.version

        return self.log.write(decide)

    def delete_subject(self, subject: Subject, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject, softly or for good; return their numbers."""

        def decide() -> Decision[list[int]]:
            with self.log.lock:
                state = self.log.state
                every, live = state.versions(subject, deleted=True), state.versions(subject)
                if not every:
                    raise errors.subject_not_found(subject.qualified)
                if not live and not permanent:
                    raise errors.subject_soft_deleted(subject.qualified)
                _check_writable(state, subject)
                for each in every if permanent else live:
                    _check_unreferenced(state, subject, each, for_good=permanent)
                if not permanent:
                    last = live[-1].version
                    deletion = SubjectDeletion(subject=subject.qualified, last_version=last)
                    numbers = [each.version for each in live]
                    return [deletion, *_unset(state, subject)], numbers
                if live:
                    raise errors.subject_not_soft_deleted(subject.qualified)
                return [*_gone(every), IdsRecord(highest=state.highest_ids())], [
                    each.version for each in every
                ]

        return self.log.write(decide)

    # ---------------------------------------------------------------------- configs and modes

    def config(self, scope: str, *, default_to_global: bool) -> Config:
        """Return what is set for a subject, a context, or all (empty)."""

        def read(state: RegistryState) -> Config:
            held = state.config(scope)
            if default_to_global:
                subject = parse_subject(scope)
                normalize = state.normalizes(subject) or None
                return Config(level=state.level_in_scope(subject), normalize=normalize)
            if scope == "":
                return Config(
                    level=(held.level if held else None) or DEFAULT_LEVEL,
                    normalize=held.normalize if held else None,
                )
            if held is None:
                raise errors.compatibility_not_set(scope)
            return held

        return self.query(read)

    def set_config(self, scope: str, given: Config) -> None:
        """Set what is given, and leave the rest as it is."""

        def decide() -> Decision[None]:
            with self.log.lock:
                state = self.log.state
                _check_writable(state, parse_subject(scope))
                held = state.config(scope) or Config()
                merged = Config(
                    level=given.level or held.level,
                    normalize=held.normalize if given.normalize is None else given.normalize,
                )
                return [ConfigRecord(subject=scope, config=merged)], None

        self.log.write(decide)

    def delete_config(self, scope: str) -> Config:
        """Unset the config of a subject, a context or all; return what it was."""

        def decide() -> Decision[Config]:
            with self.log.lock:
                state = self.log.state
                held = state.config(scope)
                if held is None:
                    raise errors.subject_not_found(scope)
                _check_writable(state, parse_subject(scope))
                return [ConfigRecord(subject=scope, config=None)], held

        return self.log.write(decide)

    def mode(self, scope: str, *, default_to_global: bool) -> str:
        """Return the mode that is set for a subject, a context, or all (empty)."""

        def read(state: RegistryState) -> str:
            if default_to_global or scope == "":
                return state.mode_in_scope(parse_subject(scope))
            held = state.mode(scope)
            if state.mode("") == "READONLY_OVERRIDE":
                return "READONLY_OVERRIDE"
            if held is None:
                raise errors.mode_not_set(scope)
            return held

        return self.query(read)

    def set_mode(self, scope: str, mode: str, *, force: bool) -> None:
        """Set the mode. IMPORT wants no schemas there, unless it is forced."""
        if mode not in MODES:
            raise errors.invalid_mode()

        def decide() -> Decision[None]:
            with self.log.lock:
                state = self.log.state
                records: list[Record] = [ModeRecord(subject=scope, mode=mode)]
                is_change = state.mode_in_scope(parse_subject(scope)) != "IMPORT"
                if mode == "IMPORT" and is_change and not force:
                    records = [*_emptied(state, scope), *records]
                return records, None

        self.log.write(decide)

    def delete_mode(self, scope: str) -> str:
        """Unset the mode of a subject or a context; return what it was."""

        def decide() -> Decision[str]:
            with self.log.lock:
                held = self.log.state.mode(scope)
                if held is None:
                    raise errors.subject_not_found(scope)
                return [ModeRecord(subject=scope, mode=None)], held

        return self.log.write(decide)


def _reached(
    state: RegistryState,
    subject: Subject,
    references: Sequence[SchemaReference],
    seen: set[tuple[str, int]],
) -> Iterator[tuple[SchemaReference, Version]]:
    for reference in references:
        target = beside(subject, reference.subject)
        place = (target.qualified, reference.version)
        if place in seen:
            continue
        seen.add(place)
        if len(seen) > _REFERENCES_MAX:
            raise errors.invalid_schema(f"it refers to more than {_REFERENCES_MAX} schemas")
        found = _referred(state, subject, reference)
        yield from _reached(state, target, found.schema.references, seen)
        yield reference, found


def _referred(state: RegistryState, subject: Subject, reference: SchemaReference) -> Version:
    """Return the version that a reference of a schema of `subject` means: -1 is the latest that is
    not deleted. Raises RegistryError.
    """
    target = beside(subject, reference.subject)
    if reference.version == LATEST:
        found = next(reversed(state.versions(target)), None)
    else:
        found = state.version(target, reference.version)
    if found is None:
        raise RegistryError(
            404,
            40402,
            f'No schema reference found for subject "{target.qualified}" and version '
            f"{reference.version}",
        )
    return found


def _held(versions: Sequence[Version], schema: SchemaText) -> Version | None:
    """The last of the versions that is this schema."""
    return next((each for each in reversed(versions) if each.schema == schema), None)


def _check_mode(subject: Subject, given: RequestedSchema, mode: str) -> None:
    if mode in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject.qualified} is in read-only mode")
    if given.schema_id is not None and mode != "IMPORT":
        raise errors.not_permitted(f"Subject {subject.qualified} is not in import mode")
    if given.schema_id is None and mode != "READWRITE":
        raise errors.not_permitted(f"Subject {subject.qualified} is not in read-write mode")


def _new_version(given: RequestedSchema, versions: Sequence[Version], *, is_import: bool) -> int:
    following = versions[-1].version + 1 if versions else 1
    if given.version is None or given.version == following:
        return following
    if not is_import:
        raise errors.invalid_schema("Version is not one more than previous version")
    return given.version


def _new_id(state: RegistryState, subject: Subject, schema: SchemaText, wanted: int | None) -> int:
    if wanted is None:
        known = state.id_of(subject.context, schema)
        return state.next_id(subject.context) if known is None else known
    others = state.by_id(subject.context, wanted)
    if others and others[0].schema != schema:
        raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
    return wanted


def _superseded(
    state: RegistryState,
    subject: Subject,
    versions: Sequence[Version],
    schema_id: int,
    number: int,
) -> Iterator[Record]:
    """Deleted versions that are the schema which is a version again, unless a schema refers to
    them by their number: it would have a hole.
    """
    for each in versions:
        is_same = each.is_deleted and each.schema_id == schema_id and each.version < number
        if is_same and not state.referrers(subject, each.version):
            yield VersionRecord(subject=each.subject, version=each.version, held=None)


MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")


def _chosen(state: RegistryState, subject: Subject, number: int) -> Version:
    every = state.versions(subject, deleted=True)
    if not every:
        raise errors.subject_not_found(subject.qualified)
    if number == LATEST:
        live = state.versions(subject)
        return live[-1] if live else every[-1]
    found = state.version(subject, number)
    if found is None:
        raise errors.version_not_found(number)
    return found


def _check_writable(state: RegistryState, subject: Subject) -> None:
    if state.mode_in_scope(subject) in READ_ONLY:
        raise errors.not_permitted(f"Subject {subject.qualified} is in read-only mode")


def _check_unreferenced(
    state: RegistryState, subject: Subject, version: Version, *, for_good: bool
) -> None:
    """A soft deleted version can still be referred to; what is gone would leave a hole, even in
    schemas that are soft deleted themselves.
    """
    referrers = state.referrers(subject, version.version)
    if any(for_good or not each.is_deleted for each in referrers):
        raise errors.reference_exists(subject.qualified, version.version)


def _put(version: Version) -> VersionRecord:
    return VersionRecord(subject=version.subject, version=version.version, held=version)


def _gone(versions: list[Version]) -> list[VersionRecord]:
    return [
        VersionRecord(subject=each.subject, version=each.version, held=None) for each in versions
    ]


def _unset(state: RegistryState, subject: Subject) -> list[Record]:
    """A subject without versions keeps no mode and no config."""
    found: list[Record] = []
    if state.mode(subject.qualified) is not None:
        found.append(ModeRecord(subject=subject.qualified, mode=None))
    if state.config(subject.qualified) is not None:
        found.append(ConfigRecord(subject=subject.qualified, config=None))
    return found


def _emptied(state: RegistryState, scope: str) -> list[Record]:
    """Records that clear the deleted versions of a scope, so that others may be imported there."""
    subject = parse_subject(scope)
    names = [scope] if subject.name else list(state.subjects(scope or ":*:"))
    records: list[Record] = []
    for name in names:
        one = parse_subject(name)
        if state.versions(one):
            raise errors.not_permitted("Cannot import since found existing subjects")
        every = state.versions(one, deleted=True)
        for each in every:
            _check_unreferenced(state, one, each, for_good=True)
        if every:
            records += [*_gone(every), SubjectCleared(subject=name)]
    if records:
        records.append(IdsRecord(highest=state.highest_ids()))
    return records
