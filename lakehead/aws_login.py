"""Tokens by which an AWS role logs in to a cluster (docs/authentication.md#aws-roles).

    settings = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": confluent_callback("lake"), ...}

A token is a presigned request to AWS STS, with the credentials that boto3 finds: those of the
instance, the container or the environment. It names the cluster and lives for 15 minutes.
"""

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from lakehead.storage.errors import LakeheadError

CLUSTER_HEADER = "x-lakehead-cluster"
LIFETIME_S = 900

__all__ = ["LoginToken", "TokenProvider", "confluent_callback", "login_token"]


class LoginToken(NamedTuple):
    """A token, and when it expires: seconds since 1970."""

    value: str
    expires_s: float


def login_token(cluster: str, region: str | None = None, session: Any = None) -> LoginToken:
    """Return a new token for the cluster whose setting `sts.cluster` this is.

    `region` is that of STS, by default that of boto3; `session` is a boto3 session. Raises
    LakeheadError without credentials or region.
    """
    import boto3
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import BotoCoreError

    session = session or boto3.Session()
    region = region or session.region_name
    if not region:
        raise LakeheadError("name the AWS region whose STS checks the token")
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    url = f"https://sts.{region}.{domain}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest("GET", url, headers={CLUSTER_HEADER: cluster})
    try:
        credentials = session.get_credentials()
        if credentials is None:
            raise LakeheadError("boto3 finds no AWS credentials")
        frozen = credentials.get_frozen_credentials()
        SigV4QueryAuth(frozen, "sts", region, expires=LIFETIME_S).add_auth(request)
    except BotoCoreError as error:
        raise LakeheadError(f"AWS credentials cannot be had: {error}") from None
    signed = str(request.prepare().url)
    signed_at = datetime.strptime(request.context["timestamp"] + "+0000", "%Y%m%dT%H%M%SZ%z")
    value = base64.urlsafe_b64encode(signed.encode()).rstrip(b"=").decode()
    return LoginToken(value, signed_at.timestamp() + LIFETIME_S)


def confluent_callback(
    cluster: str, region: str | None = None, session: Any = None
) -> Callable[[str], tuple[str, float]]:
    """Return the `oauth_cb` of a client of confluent-kafka."""

    def token(_: str) -> tuple[str, float]:
        made = login_token(cluster, region, session)
        return made.value, made.expires_s

    return token


class TokenProvider:
    """The `sasl_oauth_token_provider` of a client of kafka-python."""

    def __init__(self, cluster: str, region: str | None = None, session: Any = None) -> None:
        self._cluster = cluster
        self._region = region
        self._session = session

    def token(self) -> str:
        """Return a new token."""
        return login_token(self._cluster, self._region, self._session).value

    def extensions(self) -> dict[str, str]:
        """Return no extensions."""
        return {}
