"""Settings of an S3 store: from its URI first, then from the standard `AWS_…` variables."""

import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from lakehead.storage.errors import SettingsError

OPTIONS = {
    "region": "the bucket's region",
    "endpoint": "URL of a server other than AWS's",
    "path_style": "true or false: whether the bucket is in the path or in the host's name",
    "profile": "a profile of the AWS configuration files",
    "sse": "AES256, aws:kms or aws:kms:dsse: encryption by the server",
    "kms_key": "the KMS key's id or ARN, with sse=aws:kms",
    "bucket_key": "true or false: one KMS data key for the bucket, for fewer calls of KMS",
    "multipart": "false: write large objects in one request, for servers that need it",
}
"""The options of a store's URI, each with its meaning."""

_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The address of a store, and the protocol's options. An empty text means: not given."""

    bucket: str
    prefix: str = ""
    region: str = ""
    endpoint: str = ""
    is_path_style: bool = False
    profile: str = ""
    encryption: str = ""
    kms_key: str = ""
    has_bucket_key: bool | None = None
    may_multipart: bool = True

    @property
    def is_express(self) -> bool:
        """Return true if the bucket is a directory bucket of S3 Express One Zone."""
        return self.bucket.endswith("--x-s3")

    def full_key(self, key: str) -> str:
        """Return the key inside the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key


def parse_uri(uri: str, environment: Mapping[str, str] = os.environ) -> S3Settings:
    """Return the settings in `s3://bucket/prefix?option=value&…`, completed by the environment.

    Raises SettingsError: no bucket, an unknown option, a value that cannot be.
    """
    parts = urllib.parse.urlsplit(uri)
    if not parts.netloc:
        raise SettingsError(f"the store {uri!r} names no bucket: write s3://bucket/prefix")
    try:
        pairs = urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        pairs = [("", "")] if parts.query else []
    given = dict(pairs)
    for name in given:
        if name not in OPTIONS:
            # Without values: one may be a secret that its user took for an option.
            raise SettingsError(
                f"the store {uri.partition('?')[0]!r} has an unknown option {name!r}: there are "
                f"{', '.join(OPTIONS)}"
            )
    endpoint = given.get("endpoint") or _first(
        environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"
    )
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"the endpoint {endpoint!r} is not a URL: write https://host:port")
    encryption = given.get("sse") or environment.get("AWS_SERVER_SIDE_ENCRYPTION", "")
    if encryption and encryption not in _ENCRYPTIONS:
        raise SettingsError(f"sse={encryption!r} is not one of {', '.join(_ENCRYPTIONS)}")
    kms_key = given.get("kms_key") or environment.get("AWS_SSE_KMS_KEY_ID", "")
    if kms_key and not encryption.startswith("aws:kms"):
        raise SettingsError("a kms_key needs sse=aws:kms")
    bucket_key = given.get("bucket_key") or environment.get("AWS_SSE_BUCKET_KEY_ENABLED", "")
    path_style = given.get("path_style", "")
    return S3Settings(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        region=given.get("region") or _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION"),
        endpoint=endpoint.rstrip("/"),
        # TLS certificates do not cover a dotted bucket in the host's name.
        is_path_style=_truth("path_style", path_style)
        if path_style
        else bool(endpoint) or "." in parts.netloc,
        profile=given.get("profile", ""),
        encryption=encryption,
        kms_key=kms_key,
        has_bucket_key=_truth("bucket_key", bucket_key) if bucket_key else None,
        may_multipart=_truth("multipart", given.get("multipart", "true")),
    )


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _truth(name: str, value: str) -> bool:
    try:
        return _TRUTH[value.lower()]
    except KeyError:
        raise SettingsError(f"{name}={value!r} is neither true nor false") from None
