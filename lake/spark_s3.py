"""Spark's way to tables on S3: Hadoop's s3a, set up from our URIs and the environment."""

import os

from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.s3.settings import parse_uri

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
