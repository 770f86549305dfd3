"""What a user is told whose environment lacks packages that a command needs."""

from storage.errors import SettingsError


def missing_extra(error: ModuleNotFoundError) -> SettingsError:
    """Return what to tell a user whose environment lacks the packages of the lake."""
    return SettingsError(
        f"{error.name} is not installed; get it with: pip install 'lakehead[lake]'"
    )
