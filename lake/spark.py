"""Spark sessions that can read topics and Delta tables, set up in one place.

A session runs on this machine (`local[2]` unless told otherwise), keeps UTC, listens on loopback
only and says nothing: what the JVM prints goes to a log file in the cache folder. Delta Lake's jars
are resolved once, by a short-lived process with Ivy settings of our own (Ivy's default chain
consults the local Maven repository and fails on a POM that lies there without its jar), and are
handed to every later session as plain files, so that it starts without a network.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
"""What Spark 4 needs."""

_LOG_BYTES_MAX = 16 << 20

# No root: Ivy's own default is Maven Central.
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true"/>
  </resolvers>
</ivysettings>
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

_RESOLVE = """\
import sys
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.jars.ivy", sys.argv[1])
builder = builder.config("spark.jars.ivySettings", sys.argv[2])
session = configure_spark_with_delta_pip(builder).getOrCreate()
with open(sys.argv[3], "w") as file:
    file.write(session.sparkContext.getConf().get("spark.jars"))
session.stop()
"""


def cache_folder() -> Path:
    """Where jars and logs are kept between runs: `LAKEHEAD_CACHE`, else the user's cache folder."""
    if configured := os.environ.get("LAKEHEAD_CACHE"):
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lakehead"


def check_java() -> int:
    """Return the major version of the Java that Spark will run on; SettingsError if it cannot run
    Spark.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise SettingsError(f"Spark needs Java {JAVA_VERSION_MIN} or newer: {_java_hint()}")
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"cannot run {java} ({error}): {_java_hint()}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    version = int(found.group(1)) if found else 0
    if version < JAVA_VERSION_MIN:
        raise SettingsError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {java} is Java {version or '?'}: "
            f"{_java_hint()}"
        )
    return version


def _java_hint() -> str:
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    return "apt-get install openjdk-17-jre-headless"


def spark_session(
    *,
    app_name: str = "lakehead",
    master: str = "local[2]",
    delta: bool = True,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> "SparkSession":
    """Return the process's Spark session, made with our settings if there is none yet.

    `delta` adds Delta Lake (its jars come from Maven Central at the first use: 87 MB, about half a
    minute). `config` is laid over our settings. `quiet` sends what the JVM prints to `spark.log` in
    the cache folder.

    Raises SettingsError for a Java that is missing or too old, for pyspark not installed, and for
    jars that cannot be fetched.
    """
    try:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ImportError:
        raise SettingsError("Spark is not installed: pip install 'lakehead[lake]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    check_java()
    settings = _settings(delta) | dict(config or {})
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    # PySpark logs every failed query as a page of JSON beside raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with _worker_environment(), _jvm_output(quiet):
        return builder.getOrCreate()


def _settings(delta: bool) -> dict[str, str]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log_settings = folder / "log4j2.properties"
    _write(log_settings, _LOG_SETTINGS)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log_settings.as_uri()} -Duser.timezone=UTC "
            "-XX:+IgnoreUnrecognizedVMOptions"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if delta:
        settings |= {
            "spark.jars": ",".join(_delta_jars(folder)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The log of a small table is read in one go instead of in 50 tasks.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    return settings


def _delta_jars(folder: Path) -> list[str]:
    """Paths of Delta Lake's jars for this pyspark, fetched if they are not here yet."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = f"spark-{version('pyspark')}-delta-{version('delta-spark')}"
    except PackageNotFoundError:
        raise SettingsError("Delta is not installed: pip install 'lakehead[lake]'") from None
    listing = folder / f"{release}.jars"
    with _locked(folder / "jars.lock"):
        jars = _listed(listing)
        if not jars:
            _resolve(folder, listing)
            jars = _listed(listing)
    return jars


def _listed(listing: Path) -> list[str]:
    if not listing.exists():
        return []
    jars = [jar.removeprefix("file://") for jar in listing.read_text().split(",")]
    return jars if all(Path(jar).is_file() for jar in jars) else []


def _resolve(folder: Path, listing: Path) -> None:
    settings = folder / "ivysettings.xml"
    _write(settings, _IVY_SETTINGS)
    found = listing.with_suffix(".new")
    command = [sys.executable, "-c", _RESOLVE, str(folder / "ivy"), str(settings), str(found)]
    sys.stderr.write("fetching the jars of Delta Lake for Spark (87 MB, once) ...\n")
    try:
        with _worker_environment():
            run = subprocess.run(  # noqa: S603 - ourselves
                command, capture_output=True, text=True, timeout=900, check=False
            )
    except subprocess.TimeoutExpired:
        raise SettingsError("the jars of Delta Lake did not arrive within 15 minutes") from None
    if run.returncode or not found.exists():
        missing = re.findall(r"unresolved dependency: ([^:\]]+)", run.stderr)
        what = f"{missing[0].strip()} was not found" if missing else "Spark did not start"
        raise SettingsError(
            f"cannot fetch the jars of Delta Lake for Spark ({what}): is Maven Central reachable?"
        )
    found.replace(listing)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock: two first sessions must not fill the same Ivy cache at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _worker_environment() -> Iterator[None]:
    """Environment for the JVM's birth: it starts Python workers with this Python and these
    packages.
    """
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    wanted = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        # What the JVM and its workers listen on must not be seen from other machines.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _jvm_output(quiet: bool) -> Iterator[None]:
    """Point file descriptor 2 at the log while the JVM is started; the JVM keeps it, we do not."""
    if not quiet:
        yield
        return
    path = cache_folder() / "spark.log"
    if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
        path.unlink()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kept = os.dup(2)
    try:
        os.dup2(log, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


def _write(path: Path, text: str) -> None:
    """Write a small file so that a reader in another process sees it whole."""
    if path.exists() and path.read_text() == text:
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
