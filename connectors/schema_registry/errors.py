"""Errors of the registry: an HTTP status, Confluent's error code, and a message.

Clients distinguish causes by the code, so each has a function here.
"""

from lakehead.storage.errors import LakeheadError


class RegistryError(LakeheadError):
    """A refused or failed request. `status` is HTTP's, `code` Confluent's."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class InvalidSchema(LakeheadError):
    """A schema is none of its type. The message says why."""


def forbidden(user: str, role: str, subject: str) -> RegistryError:
    """The user has no such role there."""
    place = f"subject {subject!r}" if subject else "all subjects"
    return RegistryError(403, 40301, f"User {user!r} is denied: the role {role} on {place}")


def subject_not_found(subject: str) -> RegistryError:
    """No such subject."""
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    """The subject is there, the version is not."""
    return RegistryError(404, 40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> RegistryError:
    """No schema of an id, or none like the one that was given."""
    named = "Schema not found" if schema_id is None else f"Schema {schema_id} not found"
    return RegistryError(404, 40403, named)


def subject_soft_deleted(subject: str) -> RegistryError:
    """The subject was deleted, and only the permanent deletion is left."""
    message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
    return RegistryError(404, 40404, message)


def subject_not_soft_deleted(subject: str) -> RegistryError:
    """A permanent deletion needs the other one first."""
    message = f"Subject '{subject}' was not deleted first before being permanently deleted"
    return RegistryError(404, 40405, message)


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    """The version was deleted, and only the permanent deletion is left."""
    return RegistryError(
        404,
        40406,
        f"Subject '{subject}' Version {version} was soft deleted. "
        "Set permanent=true to delete permanently",
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    """A permanent deletion needs the other one first."""
    return RegistryError(
        404,
        40407,
        f"Subject '{subject}' Version {version} was not deleted first before being permanently "
        "deleted",
    )


def compatibility_not_set(subject: str) -> RegistryError:
    """The subject has no level of its own, and the request names no other."""
    message = f"Subject '{subject}' does not have subject-level compatibility configured"
    return RegistryError(404, 40408, message)


def mode_not_set(subject: str) -> RegistryError:
    """The subject has no mode of its own, and the request names no other."""
    message = f"Subject '{subject}' does not have subject-level mode configured"
    return RegistryError(404, 40409, message)


def incompatible(subject: str, details: str) -> RegistryError:
    """Values of the schema and those of earlier ones cannot be read as the level promises."""
    message = (
        "Schema being registered is incompatible with an earlier schema for subject "
        f'"{subject}", details: {details}'
    )
    return RegistryError(409, 409, message)


def malformed_request(reason: str) -> RegistryError:
    """The body or a parameter is not what the interface takes."""
    return RegistryError(422, 422, reason)


def invalid_schema(reason: str) -> RegistryError:
    """The schema cannot be read, or its type is unknown."""
    return RegistryError(422, 42201, reason)


def invalid_version(version: str) -> RegistryError:
    """No version number, and not "latest"."""
    return RegistryError(
        422,
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between "
        '[1, 2^31-1] and the string "latest"',
    )


def invalid_compatibility() -> RegistryError:
    """No compatibility level."""
    return RegistryError(
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive",
    )


def invalid_mode() -> RegistryError:
    """No mode."""
    message = "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, and IMPORT"
    return RegistryError(422, 42204, message)


def not_permitted(reason: str) -> RegistryError:
    """A mode forbids it."""
    return RegistryError(422, 42205, reason)


def reference_exists(subject: str, version: int) -> RegistryError:
    """Another schema refers to the version that is to go."""
    message = f"One or more references exist to the schema {{subject={subject},version={version}}}."
    return RegistryError(422, 42206, message)


def invalid_subject(subject: str) -> RegistryError:
    """A name with control characters, or none at all."""
    return RegistryError(422, 42208, f"The specified subject '{subject}' is not a valid.")


def schema_too_large(reason: str) -> RegistryError:
    """The topic takes no record of this size."""
    message = f"Register operation failed because schema is too large: {reason}"
    return RegistryError(422, 42209, message)


def store_failed(reason: str) -> RegistryError:
    """The topic cannot be read or written."""
    return RegistryError(500, 50001, reason)


def timed_out(reason: str) -> RegistryError:
    """The topic did not respond in time. The outcome of a write is unknown: send the
    request again.
    """
    return RegistryError(500, 50002, reason)
