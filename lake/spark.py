"""Spark sessions that can read topics and Delta tables, set up in one place.

A session runs on this machine (`local[2]` by default), uses UTC, listens on loopback only and
prints nothing: the JVM's output goes to a log file in the cache folder. Jars (Delta Lake, and s3a
for tables on S3) are fetched once, see `spark_jars`. Tables on S3 are reached by Hadoop's s3a, set
up from our URIs and the environment.

Spark loads some 13,000 classes from its jars before the first row: the JVM reads, checks and links
each one. An archive of Java's application class-data sharing (AppCDS, JEP 310 and 350) keeps them
in a file as they are in memory, and later JVMs map that file. It is made when a JVM ends, of the
classes that it has loaded, and belongs to one Java and one set of jars. The JVM itself checks that,
and ignores an archive of others.
"""

import atexit
import contextlib
import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.lake.spark_jars import delta_jars, s3a_jars, worker_environment, write_file
from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.s3.settings import parse_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    the name is that of the later one. Options about archives in the environment take
    precedence. `java` is the program, `jars` the folder of Spark's.
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
    """Return whether a JVM has written an archive to its end: it writes the first bytes last."""
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


_S3A = "spark.hadoop.fs.s3a"
_SDK_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""Hadoop's own default looks into no profile files."""


def spark_place(uri: str) -> str:
    """Return what Spark calls the place that an object-store URI names."""
    if not uri.startswith("s3:"):
        return uri.removeprefix("file:").removeprefix("//") if uri.startswith("file:") else uri
    settings = parse_uri(uri)
    return f"s3a://{settings.bucket}/{settings.prefix}"


def s3a_settings(uri: str) -> dict[str, str]:
    """Return Spark settings with which `spark_place(uri)` can be read and written.

    Those of a bucket, so that buckets of several endpoints go together. Credentials are the
    environment's, else what the AWS SDK's own chain finds: profile files, SSO, web identity,
    container, instance. Raises SettingsError for a URI that names no place.
    """
    settings = parse_uri(uri)
    if settings.profile:
        raise SettingsError("a table cannot use profile=: set AWS_PROFILE instead")
    has_keys = all(map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")))
    of_bucket = f"{_S3A}.bucket.{settings.bucket}"
    options = {
        f"{of_bucket}.endpoint": settings.endpoint,
        # Signatures name a region, also where there is none.
        f"{of_bucket}.endpoint.region": settings.region or "us-east-1",
        f"{of_bucket}.path.style.access": str(settings.is_path_style).lower(),
        f"{of_bucket}.connection.ssl.enabled": str(
            not settings.endpoint.startswith("http://")
        ).lower(),
        f"{of_bucket}.access.key": os.environ.get("AWS_ACCESS_KEY_ID", ""),
        f"{of_bucket}.secret.key": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
        f"{of_bucket}.session.token": os.environ.get("AWS_SESSION_TOKEN", ""),
        f"{of_bucket}.aws.credentials.provider": "" if has_keys else _SDK_CHAIN,
        f"{of_bucket}.encryption.algorithm": _encryption(settings.encryption),
        f"{of_bucket}.encryption.key": settings.kms_key,
    }
    return {name: value for name, value in options.items() if value}


def _encryption(name: str) -> str:
    if not name:
        return ""
    if name in ("aws:kms", "AES256"):
        return "SSE-KMS" if name == "aws:kms" else "AES256"
    raise SettingsError(f"Spark knows no encryption {name} on S3")


JAVA_VERSION_MIN = 17
"""Java that Spark 4 needs."""

CATALOG_DATABASE = "lakehead"
"""The database of global temporary views in our sessions: those of `lakehead sql` are about the
cluster.
"""

_LOG_BYTES_MAX = 16 << 20
_HADOOP = "spark.hadoop."
_SOCKET_PATH_BYTES_MAX = 103
"""Longest socket path on macOS; Linux allows four more."""
_SOCKET_NAME_BYTES = 43
"""A slash, a dot, a UUID and `.sock`: what Spark calls them."""

_LATE_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=500000 -XX:Tier4MinInvocationThreshold=60000 "
    "-XX:Tier4CompileThreshold=1500000 -XX:Tier4BackEdgeThreshold=4000000"
)
"""The JVM's optimizing compiler (C2) begins a hundred times later than by default: it would take
most of a short statement's time for what runs only once, and still optimizes what a long one does
for each row.
"""

_WORKER_PYTHON = """\
#!/bin/sh
# Spark puts archives of PySpark before the installed one. Each process compiles those again.
kept=
set -f
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
  esac
done
unset IFS
PYTHONPATH=$kept exec {python} "$@"
"""

_LOG_SETTINGS = """\
status = error
appenders = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601}{UTC} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
"""


def cache_folder() -> Path:
    """Return the folder of jars and logs that stay between runs: `LAKEHEAD_CACHE`, else the user's
    cache folder.
    """
    if configured := os.environ.get("LAKEHEAD_CACHE"):
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lakehead"


def check_java() -> int:
    """Return the major version of the Java that Spark will run on; SettingsError if it cannot run
    Spark.
    """
    java = _java()
    if java is None and (home := os.environ.get("JAVA_HOME")):
        raise SettingsError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and JAVA_HOME={home} has no bin/java: "
            "set it to the folder of a Java, or unset it"
        )
    if java is None:
        raise SettingsError(f"Spark needs Java {JAVA_VERSION_MIN} or newer: {_java_hint()}")
    version = _version_in(_release(java)) or _version_in(_run_for_version(str(java)))
    if version < JAVA_VERSION_MIN:
        raise SettingsError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {java} is Java {version or '?'}: "
            f"{_java_hint()}"
        )
    return version


def _java() -> Path | None:
    """Return the program that Spark's scripts start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(java) if java is not None and Path(java).exists() else None


def _release(java: Path) -> str:
    """Return the file in which a JDK or JRE says its version, empty if there is none: it saves the
    start of a JVM.
    """
    try:
        return (java.resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _run_for_version(java: str) -> str:
    try:
        return subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"cannot run {java} ({error}): {_java_hint()}") from error


def _version_in(text: str) -> int:
    """Return the major version that a release file or `java -version` names; 0 for none."""
    found = re.search(r'(?:^JAVA_VERSION=|version )"(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def _java_hint() -> str:
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    return "apt-get install openjdk-17-jre-headless"


def spark_session(
    *,
    app_name: str = "lakehead",
    master: str = "local[2]",
    delta: bool = True,
    s3a: bool = False,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
    make_archive: bool = False,
) -> "SparkSession":
    """Return the process's Spark session, made with our settings if there is none yet.

    `delta` adds Delta Lake (its jars come from Maven Central at the first use: 87 MB, about half a
    minute), `s3a` the file system for S3 (690 MB; see `s3a_settings`). `config` is laid over our
    settings. `quiet` sends what the JVM prints to `spark.log` in the cache folder. `make_archive`
    lets the JVM write the archive of its classes when it ends, if there is none yet; every session
    uses one that is there (see `archive_options`).

    Raises SettingsError for a Java that is missing or too old, for pyspark not installed, and for
    jars that cannot be fetched.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SettingsError("Spark is not installed: pip install 'lakehead[lake]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return _with(active, s3a, config or {})
    check_java()
    settings = _settings(delta, s3a, make_archive) | dict(config or {})
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    # PySpark logs every failed query as a page of JSON beside raising it, from Spark 4.0 on.
    with contextlib.suppress(ImportError):
        from pyspark.logger import PySparkLogger

        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with worker_environment(worker_python(cache_folder())), _jvm_output(quiet):
        return builder.getOrCreate()


def worker_python(folder: Path) -> str:
    """Return the program that starts Python workers: this Python, with the installed PySpark.

    It is a script in `folder`, and on a file system without scripts this Python itself, whose
    workers start slower.
    """
    key = hashlib.sha256(sys.executable.encode()).hexdigest()[:_KEY_LENGTH]
    path = folder / f"worker-python-{key}"
    write_file(path, _WORKER_PYTHON.format(python=shlex.quote(sys.executable)), mode=0o755)
    return str(path) if os.access(path, os.X_OK) else sys.executable


def has_s3a(session: "SparkSession") -> bool:
    """Return whether a session was started with the file system for S3."""
    return "hadoop-aws" in (session.sparkContext.getConf().get("spark.jars") or "")


def _with(session: "SparkSession", s3a: bool, config: Mapping[str, str]) -> "SparkSession":
    """A session that is there already, with those requested options that can still be set."""
    if s3a and not has_s3a(session):
        raise SettingsError("this Spark session was started without s3a: start another process")
    for name, value in config.items():
        if name.startswith(_HADOOP):
            session.conf.set(name.removeprefix(_HADOOP), value)
    return session


def _settings(delta: bool, s3a: bool, make_archive: bool) -> dict[str, str]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log_settings = folder / "log4j2.properties"
    write_file(log_settings, _LOG_SETTINGS)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log_settings.as_uri()} -Duser.timezone=UTC "
            "-XX:+IgnoreUnrecognizedVMOptions -Darrow.enable_unsafe_memory_access=true "
            f"{_LATE_OPTIMIZATION} " + _archive_options(folder, make_archive)
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.globalTempDatabase": CATALOG_DATABASE,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    settings |= _local_sockets()
    jars = [*(delta_jars(folder) if delta else ()), *(s3a_jars(folder) if s3a else ())]
    if jars:
        settings["spark.jars"] = ",".join(jars)
    if delta:
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The log of a small table is read in one go instead of in 50 tasks.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    return settings


def _archive_options(folder: Path, make: bool) -> str:
    from pyspark.find_spark_home import _find_spark_home

    java = _java()
    assert java is not None, "a session checks Java first"
    return archive_options(folder, java, Path(_find_spark_home()) / "jars", make=make)


@functools.cache
def _local_sockets() -> dict[str, str]:
    """Settings by which workers and JVM talk without a network's layers in between.

    The sockets are in a folder that only this user can open and that goes with the process: a
    session that is not stopped leaves them behind.
    """
    folder = tempfile.mkdtemp(prefix="lh-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if len(os.fsencode(folder)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": folder,
    }


@contextlib.contextmanager
def _jvm_output(quiet: bool) -> Iterator[None]:
    """Point file descriptors 1 and 2 at the log while the JVM is started. The JVM keeps them, we do
    not: a program that reads our output to its end does not wait for the JVM's.
    """
    if not quiet:
        yield
        return
    path = cache_folder() / "spark.log"
    if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
        path.unlink()
    streams = {1: sys.stdout, 2: sys.stderr}
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kept = {number: os.dup(number) for number in streams}
    try:
        for number, stream in streams.items():
            stream.flush()
            os.dup2(log, number)
        yield
    finally:
        for number, stream in streams.items():
            stream.flush()
            os.dup2(kept[number], number)
            os.close(kept[number])
        os.close(log)
