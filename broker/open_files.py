"""The limit of open files and sockets of this process."""

import resource

_OPEN_FILES_MAX = 1 << 20


def raise_open_file_limit() -> None:
    """Raise this process's soft limit of open files to the hard one, at most to a million. Its
    child processes inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_file_limit() -> int:
    """Return how many files and sockets this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
