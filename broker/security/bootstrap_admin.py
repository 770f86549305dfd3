"""The first user of a cluster, `bootstrap.admin`, as `kafka-storage format --add-scram` makes it.

Its credentials are in the first entry of the metadata log. In a cluster that exists the setting
changes nothing: it only has to agree with what is there.
"""

import random

from lakehead.broker.security.sasl.scram import MIN_ITERATIONS, SCRAM_MECHANISMS, secure_text
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.records import ScramUpsert
from lakehead.storage.metadata.state import MetadataImage


def admin_records(settings: Settings, rng: random.Random) -> tuple[ScramUpsert, ...]:
    """Return the credentials of the first user for a new cluster. Raises SettingsError."""
    user, password = settings.bootstrap_admin, settings.bootstrap_admin_password
    if not user:
        if password:
            raise SettingsError("bootstrap.admin.password: name the user, with bootstrap.admin")
        return ()
    if not password:
        raise SettingsError(
            "bootstrap.admin: its password is missing: set LAKEHEAD_BOOTSTRAP_ADMIN_PASSWORD, or "
            "bootstrap.admin.password to a reference like ${directory:/run/secrets:admin}"
        )
    records = []
    for mechanism in SCRAM_MECHANISMS.values():
        salt = secure_text(rng).encode()
        made = mechanism.credential_of(password, salt, MIN_ITERATIONS)
        records.append(
            ScramUpsert(
                user=user,
                mechanism=mechanism.name,
                salt=salt,
                stored_key=made.stored_key,
                server_key=made.server_key,
                iterations=made.iterations,
            )
        )
    return tuple(records)


def check_admin(settings: Settings, state: MetadataImage) -> None:
    """Raise SettingsError if a cluster exists and its user of this name is another one."""
    user, password = settings.bootstrap_admin, settings.bootstrap_admin_password
    if not user or not state.cluster_id:
        return
    known = [
        (mechanism, state.scram_credentials[user, name])
        for name, mechanism in SCRAM_MECHANISMS.items()
        if (user, name) in state.scram_credentials
    ]
    if not known:
        raise SettingsError(
            f"bootstrap.admin: the cluster exists, without a user {user!r}: add the user with "
            "kafka-configs, or leave bootstrap.admin out"
        )
    if not all(mechanism.is_password(password, credential) for mechanism, credential in known):
        raise SettingsError(
            f"bootstrap.admin: the cluster exists, and the password of {user!r} is another one: "
            "change it with kafka-configs, or leave bootstrap.admin out"
        )
