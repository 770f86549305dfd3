"""Paths of table roots and of what they must keep clear of: tuples of names from the outermost
inwards.

A root is written in one way only (`root_path`), since readers of a table do not agree about others:
delta-rs takes a place for a URL, in which `%2e` is a dot and `..` goes back; an object store takes
the same text as it is.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from lakehead.storage.errors import SettingsError

Path = tuple[str, ...]
"""("file", "data", "tables") is `/data/tables`, ("s3", "lake", "t") is `s3://lake/t`."""

ANYWHERE = "*"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SPECIAL = "%?#\\"
_REACHES = ("endpoint", "profile")
"""Options that decide which server gets requests, and signed by which credentials."""


class AllowedRoot(NamedTuple):
    """A place that tables may lie in. `reaches`: the options with which it is reached."""

    path: Path
    reaches: frozenset[tuple[str, str]] = frozenset()


def root_path(uri: str) -> Path:
    """Return the path of a table's root.

    Raises SettingsError unless it is `/folder`, `file:/folder` or `s3://bucket/prefix` (options
    behind a `?` on S3 alone), written without what means something else to one of its readers.
    """
    scheme = _SCHEME.match(uri)
    kind = "file" if scheme is None else scheme[1]
    if kind == "memory":
        raise SettingsError("a table cannot be kept in memory: use a folder or s3://bucket/prefix")
    if kind not in {"file", "s3"}:
        raise SettingsError(f"{uri!r} is neither a folder nor s3://bucket/prefix")
    place = uri if kind == "file" else uri.partition("?")[0]
    place = place.removeprefix(f"{kind}:")
    names = _names(uri, place, kind)
    if kind == "s3":
        if not place.startswith("//") or len(names) < 2 or not _BUCKET.fullmatch(names[0]):
            raise SettingsError(f"{uri!r} names no prefix in a bucket: write s3://bucket/prefix")
        return (kind, names[0].lower(), *names[1:])
    if not place.startswith("/") or (place.startswith("//") and not place.startswith("///")):
        raise SettingsError(f"{uri!r} is not the whole path of a folder: begin with /")
    if not names:
        raise SettingsError(f"{uri!r} is the root of the file system: name a folder")
    return (kind, *names)


def _names(uri: str, place: str, kind: str) -> list[str]:
    found = next((one for one in _SPECIAL if one in place), None)
    if found is not None or _CONTROL.search(uri):
        raise SettingsError(
            f"{uri!r} has {found or 'a control character'}, which readers of a table take for "
            "different things: name a place without"
        )
    names = place.strip("/").split("/") if place.strip("/") else []
    if any(name in {".", ".."} for name in names) or (kind == "s3" and "" in names):
        raise SettingsError(f"{uri!r} has a part that is empty, . or ..: name the place without")
    return [name for name in names if name]


def place_path(uri: str) -> Path | None:
    """Return the path of what an operator has named: a store, a write-ahead log, a file. None where
    it lies in no file system and no bucket, or within the store; a relative path is of this
    process's folder.
    """
    if not uri:
        return None
    scheme = _SCHEME.match(uri)
    kind = "file" if scheme is None else scheme[1]
    rest = uri if scheme is None else uri[scheme.end() :]
    if kind in {"block", "object"}:
        return None if not rest or rest.startswith("ebs:") else place_path(rest)
    if kind == "s3":
        names = re.split(r"[?#]", rest)[0].strip("/").split("/")
        return (kind, names[0].lower(), *(name for name in names[1:] if name))
    if kind != "file":
        return None
    folder = rest.partition("?")[0]
    # Not resolved: a symbolic link is followed only where the caller says so.
    return folder_path(os.path.abspath(folder.removeprefix("//")))  # noqa: PTH100


def folder_path(folder: str) -> Path:
    """Return the path of a folder of a file system."""
    return ("file", *(name for name in folder.split("/") if name))


def lies_in(path: Path, other: Path) -> bool:
    """Return true if a path is the other or lies in it."""
    return path[: len(other)] == other


def as_text(path: Path) -> str:
    """Return a path as it is written in a config."""
    return f"s3://{'/'.join(path[1:])}" if path[0] == "s3" else f"/{'/'.join(path[1:])}"


def reached_by(uri: str) -> frozenset[tuple[str, str]]:
    """Return the options of a URI that decide the server of its requests, and their credentials."""
    options = parse_qsl(uri.partition("?")[2], keep_blank_values=True)
    return frozenset((name, value.rstrip("/")) for name, value in options if name in _REACHES)


def allowed_roots(text: str) -> tuple[AllowedRoot, ...] | None:
    """Return the places of the setting `table.roots`; None for anywhere (`*`).

    Raises SettingsError for what is neither a folder nor a bucket or prefix.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    if ANYWHERE in items:
        return None
    return tuple(AllowedRoot(_allowed_path(item), reached_by(item)) for item in items)


def _allowed_path(item: str) -> Path:
    bucket = item.partition("?")[0].removeprefix("s3://").rstrip("/")
    if item.startswith("s3://") and _BUCKET.fullmatch(bucket):
        return ("s3", bucket.lower())
    try:
        return root_path(item)
    except SettingsError as error:
        raise SettingsError(f"table.roots: {error}") from None
