"""An archive of the JVM's classes, which spares a Spark session loading them one by one.

Spark loads some 13,000 classes from its jars before the first row: the JVM reads, checks and links
each one. Java's application class-data sharing (AppCDS, JEP 310 and 350) keeps them in a file as
they are in memory, and later JVMs map that file. It is made as a JVM ends, of the classes that it
has loaded, and belongs to one Java and one set of jars. The JVM itself checks that, and does
without the archive where something differs.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path

_NAME = "spark-classes-{}.jsa"
_KEY_LENGTH = 16
_OTHERS_KEPT = 2
_ENVIRONMENT = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_SHARING = re.compile(
    "-Xshare|SharedArchive|SharedClass|ArchiveClasses|RecordDynamicDump|SharedSpaces"
)
"""Options about class-data sharing: a JVM that is given some twice may not start."""

_QUIET = "-Xlog:cds=error -Xlog:cds+dynamic=error"
"""Without it a JVM prints a line for each class that it leaves out."""

_UNFIT = frozenset('":\\')
"""Characters that a path within the JVM's options cannot have; a colon separates two archives."""


def archive_options(folder: Path, java: Path, jars: Path, *, make: bool) -> str:
    """Return the options with which a JVM uses the archive in `folder`; none if there is none yet.

    With `make` a JVM that finds none is given the option to write it when it ends, which takes it
    seconds after its program has ended (150 MB). Two that do so at once write one file each, and
    the name is that of the later one. Where the environment has options about archives, those
    count. `java` is the program, `jars` the folder of Spark's.
    """
    given = " ".join(os.environ.get(name, "") for name in _ENVIRONMENT)
    archive = folder / _NAME.format(_key(java, jars))
    if _SHARING.search(given) or _UNFIT & set(str(archive)):
        return ""
    if is_whole(archive):
        return f'"-XX:SharedArchiveFile={archive}"'
    if not make:
        return ""
    _remove_old(folder, archive)
    return f'"-XX:ArchiveClassesAtExit={archive}" {_QUIET}'


def is_whole(archive: Path) -> bool:
    """Whether a JVM has written an archive to its end: it writes the first bytes last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(4))
    except OSError:
        return False


def _remove_old(folder: Path, archive: Path) -> None:
    """Remove archives of other Javas and jars but the newest: environments may share a folder."""
    with contextlib.suppress(OSError):
        others = [one for one in folder.glob(_NAME.format("*")) if one != archive]
        for other in sorted(others, key=lambda one: one.stat().st_mtime)[:-_OTHERS_KEPT]:
            other.unlink()


def _key(java: Path, jars: Path) -> str:
    """Return a name for a Java with a set of jars, which another release of either changes."""
    digest = hashlib.sha256()
    for path in (java.resolve(), *sorted(jars.glob("*.jar"))):
        found = path.stat()
        digest.update(f"{path}\n{found.st_size}\n{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:_KEY_LENGTH]
