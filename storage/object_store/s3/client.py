"""The clients of a store: obstore's for objects, boto3's for what obstore lacks (uploads in parts,
the check at the start). Both are given the same place, credentials and encryption.

Neither repeats a request by itself: a repeated put would hide whether a 412 means another's object
or our own of a moment ago, and repeats would neither be counted nor end when the store is closed.
`RetryingStore` is the one place that repeats.
"""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.store import S3Store as Client

from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.s3.settings import S3Settings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3CredentialProvider

CONNECT_TIMEOUT_S = 3.0
"""A connection is made within a few round trips or not at all: then another address is tried."""
IDLE_TIMEOUT_S = 15.0
"""Servers close idle connections after about 20 s; a put on one that they just closed would lose
its response.
"""
READ_TIMEOUT_S = 20.0
"""Of boto3, between two bytes."""
REQUEST_TIMEOUT_S = 600.0
"""Of obstore, for a whole request: only a backstop. The deadlines by size are what counts."""
CREDENTIALS_TTL_S = 300.0
"""boto3 renews credentials at least ten minutes before they end: renewed this often, none is ever
used beyond its end.
"""
NO_CREDENTIALS = (
    "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, "
    "or run where the machine has a role"
)


def object_client(settings: S3Settings, *, has_crc: bool = False) -> Client:
    """Return obstore's client. With `has_crc` its requests carry a CRC of their bodies in place of
    the SHA-256. Raises SettingsError: no credentials, values that do not fit.
    """
    config: S3Config = {
        "virtual_hosted_style_request": not settings.is_path_style,
        "conditional_put": "etag",  # whatever the environment says
        "unsigned_payload": has_crc,
    }
    if has_crc:
        config["checksum_algorithm"] = "CRC64NVME"
    session = None
    if not _has_plain_credentials(settings):
        session = _session(settings)
    if region := settings.region or (session.region_name if session else ""):
        config["region"] = region
    if settings.endpoint:
        config["endpoint"] = _bucket_endpoint(settings)
    if settings.encryption:
        config["server_side_encryption"] = settings.encryption
    if settings.kms_key:
        config["sse_kms_key_id"] = settings.kms_key
    if settings.has_bucket_key is not None:
        config["sse_bucket_key_enabled"] = settings.has_bucket_key
    if settings.is_express:
        config["s3_express"] = True
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "pool_idle_timeout": timedelta(seconds=IDLE_TIMEOUT_S),
        "allow_http": settings.endpoint.startswith("http://"),
    }
    try:
        return Client(
            settings.bucket,
            prefix=settings.prefix or None,
            config=config,
            client_options=options,
            retry_config={"max_retries": 0},
            credential_provider=None if session is None else _provider(session),
        )
    except Exception as error:
        raise SettingsError(f"cannot use the bucket {settings.bucket}: {error}") from error


def control_client(settings: S3Settings) -> Any:
    """Return boto3's client. Slow (it reads its models from files): call it in a thread."""
    from botocore.config import Config

    return _session(settings).client(
        "s3",
        region_name=settings.region or None,
        endpoint_url=settings.endpoint or None,
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=16,
            # A body is signed whole by its SHA-256, as obstore does: one checksum, and one write.
            request_checksum_calculation="when_required",
            s3={
                "addressing_style": "path" if settings.is_path_style else "virtual",
                "payload_signing_enabled": True,
            },
        ),
    )


def _session(settings: S3Settings) -> Any:
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.Session(profile_name=settings.profile or None)
    except BotoCoreError as error:
        raise SettingsError(f"cannot use the AWS configuration: {error}") from error


def _has_plain_credentials(settings: S3Settings) -> bool:
    """Return true if obstore finds credentials in the environment, where boto3 would look first
    too.
    """
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    return not settings.profile and all(os.environ.get(name) for name in names)


def _provider(session: Any) -> "S3CredentialProvider":
    """Return the standard chain: profile files, SSO, web identity, container, instance."""
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(session, ttl=timedelta(seconds=CREDENTIALS_TTL_S))
    except ValueError:
        raise SettingsError(NO_CREDENTIALS) from None


def _bucket_endpoint(settings: S3Settings) -> str:
    """Return the endpoint as obstore wants it: with the bucket's name, unless in path style."""
    if settings.is_path_style:
        return settings.endpoint
    scheme, _, host = settings.endpoint.partition("://")
    return f"{scheme}://{settings.bucket}.{host}"
