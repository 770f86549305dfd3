"""What deletes versions and subjects, and what sets configs and modes."""

from lakehead.connectors.schema_registry import errors
from lakehead.connectors.schema_registry.log import Decision
from lakehead.connectors.schema_registry.records import (
    Config,
    ConfigRecord,
    IdsRecord,
    ModeRecord,
    Record,
    SubjectCleared,
    SubjectDeletion,
    Version,
    VersionRecord,
)
from lakehead.connectors.schema_registry.registry import READ_ONLY, Registry
from lakehead.connectors.schema_registry.requested import LATEST
from lakehead.connectors.schema_registry.state import DEFAULT_LEVEL, RegistryState, deleted
from lakehead.connectors.schema_registry.subjects import Subject, parse_subject

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")


class Upkeep:
    """Changes that are no new schemas. All raise RegistryError."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._log = registry.log

    # ------------------------------------------------------------------------------ deleting

    def delete_version(self, subject: Subject, number: int, *, permanent: bool) -> int:
        """Delete a version, softly or for good; return its number."""

        def decide() -> Decision[int]:
            with self._log.lock:
                state = self._log.state
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

        return self._log.write(decide)

    def delete_subject(self, subject: Subject, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject, softly or for good; return their numbers."""

        def decide() -> Decision[list[int]]:
            with self._log.lock:
                state = self._log.state
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

        return self._log.write(decide)

    # ---------------------------------------------------------------------- configs and modes

    def config(self, scope: str, *, default_to_global: bool) -> Config:
        """Return what is set for a subject, a context, or all (empty)."""

        def question(state: RegistryState) -> Config:
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

        return self._registry.ask(question)

    def set_config(self, scope: str, given: Config) -> None:
        """Set what is given, and leave the rest as it is."""

        def decide() -> Decision[None]:
            with self._log.lock:
                state = self._log.state
                _check_writable(state, parse_subject(scope))
                held = state.config(scope) or Config()
                merged = Config(
                    level=given.level or held.level,
                    normalize=held.normalize if given.normalize is None else given.normalize,
                )
                return [ConfigRecord(subject=scope, config=merged)], None

        self._log.write(decide)

    def delete_config(self, scope: str) -> Config:
        """Unset the config of a subject, a context or all; return what it was."""

        def decide() -> Decision[Config]:
            with self._log.lock:
                state = self._log.state
                held = state.config(scope)
                if held is None:
                    raise errors.subject_not_found(scope)
                _check_writable(state, parse_subject(scope))
                return [ConfigRecord(subject=scope, config=None)], held

        return self._log.write(decide)

    def mode(self, scope: str, *, default_to_global: bool) -> str:
        """Return the mode that is set for a subject, a context, or all (empty)."""

        def question(state: RegistryState) -> str:
            if default_to_global or scope == "":
                return state.mode_in_scope(parse_subject(scope))
            held = state.mode(scope)
            if state.mode("") == "READONLY_OVERRIDE":
                return "READONLY_OVERRIDE"
            if held is None:
                raise errors.mode_not_set(scope)
            return held

        return self._registry.ask(question)

    def set_mode(self, scope: str, mode: str, *, force: bool) -> None:
        """Set the mode. IMPORT wants no schemas there, unless it is forced."""
        if mode not in MODES:
            raise errors.invalid_mode()

        def decide() -> Decision[None]:
            with self._log.lock:
                state = self._log.state
                records: list[Record] = [ModeRecord(subject=scope, mode=mode)]
                is_change = state.mode_in_scope(parse_subject(scope)) != "IMPORT"
                if mode == "IMPORT" and is_change and not force:
                    records = [*_emptied(state, scope), *records]
                return records, None

        self._log.write(decide)

    def delete_mode(self, scope: str) -> str:
        """Unset the mode of a subject or a context; return what it was."""

        def decide() -> Decision[str]:
            with self._log.lock:
                held = self._log.state.mode(scope)
                if held is None:
                    raise errors.subject_not_found(scope)
                return [ModeRecord(subject=scope, mode=None)], held

        return self._log.write(decide)


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
    """What clears the deleted versions of a scope, so that others may be imported there."""
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
