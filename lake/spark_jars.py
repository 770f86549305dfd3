"""The jars that Spark sessions need, fetched once from Maven Central and kept in a folder.

They are resolved by a short-lived process with Ivy settings of our own (Ivy's default chain
consults the local Maven repository and fails on a POM that lies there without its jar), and are
handed to every later session as plain files, so that it starts without a network.
"""

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lakehead.installation import ROOT
from lakehead.storage.errors import SettingsError

_S3A_RELEASE = "hadoop-3.5.0-s3a"
# For Hadoop 3.5.0, which pyspark 4.2.0 ships: what hadoop-aws was built with.
_S3A = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:bundle:2.35.4",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)

# No root: Ivy's own default is Maven Central.
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true"/>
  </resolvers>
</ivysettings>
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
if sys.argv[4]:
    builder = builder.config("spark.jars.packages", sys.argv[4])
else:
    builder = configure_spark_with_delta_pip(builder)
session = builder.getOrCreate()
with open(sys.argv[3], "w") as file:
    file.write(session.sparkContext.getConf().get("spark.jars"))
session.stop()
"""


def delta_jars(folder: Path) -> list[str]:
    """Paths of Delta Lake's jars for this pyspark, fetched if they are not here yet."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = f"spark-{version('pyspark')}-delta-{version('delta-spark')}"
    except PackageNotFoundError:
        raise SettingsError("Delta is not installed: pip install 'lakehead[lake]'") from None
    return _jars(folder, release, (), "Delta Lake for Spark", "87 MB")


def s3a_jars(folder: Path) -> list[str]:
    """Paths of the jars of Hadoop's s3a file system, fetched if they are not here yet."""
    return _jars(folder, _S3A_RELEASE, _S3A, "S3 for Spark", "690 MB")


def are_s3a_jars_here(folder: Path) -> bool:
    """Return whether `s3a_jars` would fetch nothing."""
    return bool(_listed(folder / f"{_S3A_RELEASE}.jars"))


def _jars(folder: Path, release: str, packages: Sequence[str], what: str, size: str) -> list[str]:
    listing = folder / f"{release}.jars"
    with _locked(folder / "jars.lock"):
        jars = _listed(listing)
        if not jars:
            sys.stderr.write(f"fetching the jars of {what} ({size}, once) ...\n")
            _resolve(folder, listing, packages, what)
            jars = _listed(listing)
    return jars


def _listed(listing: Path) -> list[str]:
    if not listing.exists():
        return []
    jars = [jar.removeprefix("file://") for jar in listing.read_text().split(",")]
    return jars if all(Path(jar).is_file() for jar in jars) else []


def _resolve(folder: Path, listing: Path, packages: Sequence[str], what: str) -> None:
    settings = folder / "ivysettings.xml"
    write_file(settings, _IVY_SETTINGS)
    found = listing.with_suffix(".new")
    command = [sys.executable, "-c", _RESOLVE, str(folder / "ivy"), str(settings), str(found)]
    command.append(",".join(packages))
    try:
        with worker_environment():
            run = subprocess.run(  # noqa: S603 - ourselves
                command, capture_output=True, text=True, timeout=900, check=False
            )
    except subprocess.TimeoutExpired:
        raise SettingsError(f"the jars of {what} did not arrive within 15 minutes") from None
    if run.returncode or not found.exists():
        missing = re.findall(r"unresolved dependency: ([^:\]]+)", run.stderr)
        why = f"{missing[0].strip()} was not found" if missing else "Spark did not start"
        raise SettingsError(f"cannot fetch the jars of {what} ({why}): is Maven Central reachable?")
    found.replace(listing)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock: two first sessions must not fill the same Ivy cache at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def worker_environment(python: str = sys.executable) -> Iterator[None]:
    """Environment for the JVM's birth: it starts Python workers by the program `python` and with
    these packages.
    """
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    wanted = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        # Ports of the JVM and its workers must not be reachable from other machines.
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


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a small file so that a reader in another process sees it whole."""
    if path.exists() and path.read_text() == text:
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
