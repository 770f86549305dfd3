"""Values of the secrets that a trial's hosts wait for: a certificate of its own authority, and the
password of the first user.
"""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from tests.aws_day.account import Account

_VALID_DAYS = 7


def put_values(account: Account, folder: Path, outputs: Mapping[str, Any], now_ms: int) -> None:
    """Put a value into each place that the cluster's module has made. `folder` keeps the authority,
    which signs for one trial alone.
    """
    authority = DevelopmentCa(folder / "authority", utc(now_ms), days=_VALID_DAYS)
    issued = authority.issue("hosts", hosts=outputs["certificate_names"])
    values = {
        "tls": authority.secret_of(issued),
        "first-admin": {"password": uuid.uuid4().hex},
    }
    secrets = account.client("secretsmanager")
    for place, fields in values.items():
        secrets.put_secret_value(
            SecretId=outputs["secrets"][place], SecretString=json.dumps(fields)
        )
