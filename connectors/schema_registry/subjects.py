"""Names of subjects, and the contexts that they lie in.

A context is a name space of subjects and of ids: `:.lab:flights-value` is the subject
`flights-value` of the context `.lab`. Without a context a subject is in the default one, `.`, and
is written bare. `:.lab:` names the context as a whole, in configs and modes.
"""

from dataclasses import dataclass

from lakehead.connectors.schema_registry.errors import invalid_subject

DEFAULT_CONTEXT = "."
ANY_CONTEXT = ":*:"
_CONTEXT_START = ":."


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of a context. Without a `name` it is the context itself."""

    context: str
    name: str

    @property
    def qualified(self) -> str:
        """Its name in the topic and in responses."""
        if self.context == DEFAULT_CONTEXT:
            return self.name
        return f":{self.context}:{self.name}"

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes of its config, in order: its own, its context, all; the first that is set
        applies.
        """
        context = Subject(self.context, "").qualified
        return tuple(dict.fromkeys((self.qualified, context, "")))


def parse_subject(text: str) -> Subject:
    """Return the subject of a name in a path or a record."""
    if not text.startswith(_CONTEXT_START):
        return Subject(DEFAULT_CONTEXT, text)
    context, _, name = text[1:].partition(":")
    return Subject(context, name)


def checked_subject(text: str) -> Subject:
    """Return the subject of a name that is to be made. Raises RegistryError."""
    subject = parse_subject(text)
    if not subject.name or not all(character.isprintable() for character in text):
        raise invalid_subject(text)
    if subject.name in ("__GLOBAL", "__EMPTY"):
        raise invalid_subject(text)
    return subject


def beside(subject: Subject, reference: str) -> Subject:
    """Return the subject that a schema of `subject` means by a reference's name."""
    found = parse_subject(reference)
    if reference.startswith(_CONTEXT_START):
        return found
    return Subject(subject.context, found.name)
