"""Access to a registry: the users that prove a name, and the roles that they have on subjects.

Users come from a file of passwords (HTTP Basic) and a file of tokens (Bearer). A third file gives
roles, `user:role:subjects` a line, where subjects are one name, or all that begin with a prefix
(`flights-*`, `*`). Without a file of roles each user has every role. The files are read again when
they change, so that a removed user is out with the next request.

Roles are `read` (schemas, versions, compatibility checks, configs and modes), `write` (register,
too) and `admin` (delete, set config and mode, too); what belongs to all subjects, or to all of a
context, needs the role on a prefix that has all of these.
"""

import base64
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

from lakehead.connectors.schema_registry.errors import forbidden
from lakehead.connectors.schema_registry.subjects import parse_subject
from lakehead.storage.errors import SettingsError

READ, WRITE, ADMIN = "read", "write", "admin"
ROLES = (READ, WRITE, ADMIN)
"""Each with the rights of those before it."""
_log = structlog.get_logger("connectors.schema_registry")
Content = TypeVar("Content")


class Grant(NamedTuple):
    """A role on a subject, or on all with a prefix."""

    rank: int
    name: str
    is_prefix: bool

    def covers(self, role: str, subject: str) -> bool:
        """Return true if the grant has the role on a subject, by its qualified name; a scope of
        many subjects is the empty name, or a context's.
        """
        if self.rank < ROLES.index(role):
            return False
        return subject.startswith(self.name) if self.is_prefix else subject == self.name


class Caller:
    """The client of a request, with its grants; None: it may do everything."""

    def __init__(self, name: str, grants: tuple[Grant, ...] | None) -> None:
        self.name = name
        self._grants = grants

    def may(self, role: str, subject: str) -> bool:
        """Return true if the client has a role on a subject, by its qualified name."""
        return self._grants is None or any(grant.covers(role, subject) for grant in self._grants)

    def require(self, role: str, subject: str) -> None:
        """Raise RegistryError unless the client has a role on a subject."""
        if not self.may(role, subject):
            raise forbidden(self.name, role, subject)


ANYONE = Caller("anonymous", None)


class Access:
    """The files, as they are now. Raises SettingsError, OSError for files that cannot be read when
    it is made.
    """

    def __init__(
        self, *, users: Path | None = None, tokens: Path | None = None, roles: Path | None = None
    ) -> None:
        if roles is not None and users is None and tokens is None:
            raise SettingsError("--roles needs --users or --tokens: without, clients have no names")
        self._users = _File(users, read_users)
        self._tokens = _File(tokens, read_tokens)
        self._roles = _File(roles, read_roles)
        self._is_open = users is None and tokens is None

    @property
    def challenge(self) -> str:
        """The header WWW-Authenticate of a refusal (RFC 7235)."""
        return "Bearer" if self._users.current() is None else 'Basic realm="schema-registry"'

    def caller(self, authorization: str) -> Caller | None:
        """Return the client of a header Authorization; None if it proves no name."""
        if self._is_open:
            return ANYONE
        scheme, _, credentials = authorization.partition(" ")
        name = None
        if scheme.lower() == "basic":
            name = self._basic(credentials.strip())
        elif scheme.lower() == "bearer":
            name = self._bearer(credentials.strip())
        if name is None:
            return None
        roles = self._roles.current()
        return Caller(name, None if roles is None else roles.get(name, ()))

    def _basic(self, credentials: str) -> str | None:
        try:
            pair = base64.b64decode(credentials, validate=True).decode()
        except ValueError:
            return None
        name, _, password = pair.partition(":")
        wanted = (self._users.current() or {}).get(name)
        is_right = hmac.compare_digest((wanted or "").encode(), password.encode())
        return name if wanted is not None and is_right else None

    def _bearer(self, token: str) -> str | None:
        found = None
        for name, wanted in (self._tokens.current() or {}).items():
            # All are compared, so that the time does not show which one is near.
            if hmac.compare_digest(wanted.encode(), token.encode(errors="replace")):
                found = name
        return found


class _File(Generic[Content]):
    """A file that is read again when it changes; the last good content stays while it is bad."""

    def __init__(self, path: Path | None, read: Callable[[Path], Content]) -> None:
        self._path = path
        self._read = read
        self._content: Content | None = None
        self._seen: tuple[int, int, int] | None = None
        if path is not None:
            self._seen = _stamp(path)
            self._content = read(path)

    def current(self) -> Content | None:
        """Return the content; None without a file."""
        if self._path is None:
            return None
        try:
            stamp = _stamp(self._path)
            if stamp != self._seen:
                self._seen = stamp
                self._content = self._read(self._path)
        except (SettingsError, OSError) as error:
            if self._seen is not None:
                _log.warning("registry_file_not_read", file=str(self._path), reason=str(error))
            self._seen = None if isinstance(error, OSError) else self._seen
        return self._content


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_users(file: Path) -> dict[str, str]:
    """Return passwords by user from lines `user:password`. Raises SettingsError, OSError."""
    return _pairs(file, "a user is name:password")


def read_tokens(file: Path) -> dict[str, str]:
    """Return tokens by user from lines `user:token`. Raises SettingsError, OSError."""
    return _pairs(file, "a token is name:token")


def _pairs(file: Path, grammar: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in lines_of(file):
        name, colon, secret = line.partition(":")
        if not colon or not name or not secret:
            raise SettingsError(f"{file}, line {number}: {grammar}")
        if name in found:
            raise SettingsError(f"{file}, line {number}: user {name} is there twice")
        found[name] = secret
    if not found:
        raise SettingsError(f"{file} names no user: a line for each; {grammar}")
    return found


def read_roles(file: Path) -> Mapping[str, tuple[Grant, ...]]:
    """Return grants by user from lines `user:role:subjects`. Raises SettingsError, OSError."""
    found: dict[str, tuple[Grant, ...]] = {}
    for number, line in lines_of(file):
        user, first, rest = line.partition(":")
        role, second, subjects = (part.strip() for part in rest.partition(":"))
        if not (first and second and user and subjects) or role not in ROLES:
            raise SettingsError(
                f"{file}, line {number}: a grant is user:role:subjects, with the role read, write "
                "or admin, and subjects as one name or as prefix*"
            )
        is_prefix = subjects.endswith("*")
        name = parse_subject(subjects).qualified.removesuffix("*")
        grant = Grant(rank=ROLES.index(role), name=name, is_prefix=is_prefix)
        found[user.strip()] = (*found.get(user.strip(), ()), grant)
    return found


def lines_of(file: Path) -> list[tuple[int, str]]:
    """Return the lines of a file with their numbers, without blank ones and comments. Raises
    SettingsError, OSError.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not text in UTF-8") from None
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line and not line.startswith("#")]
