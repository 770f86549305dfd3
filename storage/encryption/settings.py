"""The settings of encryption by the client, from the environment or from the address of a store.

A store's address may end in them, as the fragment of its URI, which never goes to a server:
`s3://bucket/prefix#encryption.key.provider=kms`. So a plan that names a store by its address takes
them along to the processes that carry it out.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from lakehead.storage.errors import SettingsError

PROVIDER, KEY_FILE, KMS_KEY, REQUIRED = OPTIONS = (
    "encryption.key.provider",
    "encryption.key.file",
    "encryption.kms.key",
    "encryption.required",
)
"""The names of the settings."""
PROVIDERS = ("none", "file", "kms")
_BOOLEANS = {"true": True, "false": False, "": False}
_MARK = "#encryption."


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """The provider of the wrapping key by which new data are encrypted, and the places of keys.

    Data are read by the key that encrypts them, whatever the provider is: so one provider can take
    the place of another, and encryption can be turned off.
    """

    provider: str = "none"
    key_file: str = ""
    kms_key: str = ""
    """Id, ARN or alias of a key of AWS KMS. A process that only reads needs none."""
    is_required: bool = False
    """Plain objects and plain records of a log are refused."""

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise SettingsError(
                f"{PROVIDER}: {self.provider!r} is not one of: {', '.join(PROVIDERS)}"
            )
        if self.provider == "file" and not self.key_file:
            raise SettingsError(f"{PROVIDER}=file needs {KEY_FILE}: the file with the keys")

    @property
    def is_on(self) -> bool:
        """Return true if new data are encrypted."""
        return self.provider != "none"

    @property
    def uses_kms(self) -> bool:
        """Return true if data may be read whose keys AWS KMS wraps."""
        return self.provider == "kms" or bool(self.kms_key)

    def require_key(self) -> None:
        """Raise SettingsError if new data are to be encrypted and there is no key for them, or if
        they have to be and are not.
        """
        if self.provider == "kms" and not self.kms_key:
            raise SettingsError(f"{PROVIDER}=kms needs {KMS_KEY}: the id, ARN or alias of a key")
        if self.is_required and not self.is_on:
            raise SettingsError(
                f"{REQUIRED}=true needs {PROVIDER}: else new data are plain, and refused"
            )


def variable(option: str) -> str:
    """Return the environment variable of a setting."""
    return f"LAKEHEAD_{option.upper().replace('.', '_')}"


def of_environment(environment: Mapping[str, str] = os.environ) -> EncryptionSettings:
    """Return the settings in the environment. Raises SettingsError."""
    return settings_of({option: environment.get(variable(option), "") for option in OPTIONS})


def settings_of(options: Mapping[str, str]) -> EncryptionSettings:
    """Return the settings that options have, by their names. Raises SettingsError."""
    required = options.get(REQUIRED, "").strip().lower()
    if required not in _BOOLEANS:
        raise SettingsError(f"{REQUIRED}: {required!r} is neither true nor false")
    return EncryptionSettings(
        provider=options.get(PROVIDER, "").strip().lower() or "none",
        key_file=options.get(KEY_FILE, "").strip(),
        kms_key=options.get(KMS_KEY, "").strip(),
        is_required=_BOOLEANS[required],
    )


def plain_address(address: str) -> str:
    """Return a store's address without settings of encryption."""
    return address.partition(_MARK)[0]


def split_address(address: str) -> tuple[str, EncryptionSettings | None]:
    """Return a store's address without settings of encryption, and these; None: it has none.

    Raises SettingsError for a setting that does not exist or has a wrong value.
    """
    place, mark, rest = address.partition(_MARK)
    if not mark:
        return place, None
    options = dict(parse_qsl(mark[1:] + rest, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise SettingsError(
                f"the store {place.partition('?')[0]!r} has an unknown option {name!r}: there are "
                f"{', '.join(OPTIONS)}"
            )
    return place, settings_of(options)


def joined_address(address: str, options: Mapping[str, str]) -> str:
    """Return a store's address with the settings of encryption that are among `options`; they go
    before those that it has. Raises SettingsError.
    """
    given = {name: options[name] for name in OPTIONS if options.get(name, "").strip()}
    if not given:
        return address
    settings_of(given)
    return f"{plain_address(address)}#{urlencode(given, safe='/:')}"
