"""A request to AWS, by boto3, with its three outcomes.

It is done when the call returns. After `AwsRefused` nothing was changed. After `AwsUnanswered` (a
timeout, a lost response, an error of the service, too many requests) it may or may not have been
done: the caller reads the state back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from lakehead.storage.errors import SettingsError, StorageError

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 10.0
_UNCLEAR = {
    "InternalError",
    "InternalFailure",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "Throttling",
    "Unavailable",
}


class AwsRefused(StorageError):
    """AWS says no, and has changed nothing. `code` is its own name for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"AWS refuses: {code}: {message}")
        self.code = code


class AwsUnanswered(StorageError):
    """No usable response from AWS: the request may have been carried out."""


class AwsClient:
    """A service of AWS (`ec2`, `kms`) in a region ("": the environment's), with credentials from
    where AWS's own tools look. Each call is made once, and blocks a thread.
    """

    def __init__(self, service: str, region: str) -> None:
        self._service = service
        self._region = region
        self._lock = threading.Lock()
        self._client: Any = None

    async def call(self, call: Callable[[Any], Any]) -> Any:
        """Return what `call` returns of the client. Raises AwsRefused, AwsUnanswered."""
        return await asyncio.to_thread(self._call_blocking, call)

    def _call_blocking(self, call: Callable[[Any], Any]) -> Any:
        from botocore import exceptions

        try:
            return call(self._opened())
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 or code in _UNCLEAR:
                raise AwsUnanswered(f"no response from AWS: {error}") from error
            message = error.response.get("Error", {}).get("Message", "")
            raise AwsRefused(code, str(message)) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise SettingsError(
                f"requests to AWS are impossible ({error}): "
                "give the instance a profile with a role that may do it"
            ) from error
        except exceptions.BotoCoreError as error:
            raise AwsUnanswered(f"no response from AWS: {error}") from error

    def _opened(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3
                from botocore.config import Config

                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    retries={"total_max_attempts": 1},
                )
                self._client = boto3.Session().client(
                    self._service, region_name=self._region or None, config=config
                )
            return self._client
