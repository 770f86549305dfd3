"""Wrapping keys in AWS KMS.

Each request carries the encryption context `lakehead:cluster` = the cluster's bucket and prefix, so
that a key policy can grant a role the data of one cluster, CloudTrail shows it, and a data key of
one cluster is of no use in another.
"""

from typing import Any

from lakehead.storage.aws.client import AwsClient, AwsRefused, AwsUnanswered
from lakehead.storage.encryption.key_provider import KMS, DataKey, WrappedKey
from lakehead.storage.errors import KeyUnavailable, SettingsError, StoreUnavailable

CONTEXT = "lakehead:cluster"


class KmsKeys:
    """The `KeyProvider` of AWS KMS, with credentials from where AWS's own tools look. `key`, an id,
    ARN or alias, wraps new data keys; `place` is the cluster's bucket and prefix.
    """

    def __init__(self, key: str, place: str) -> None:
        self._key = key
        self._context = {CONTEXT: place}
        self._client = AwsClient("kms", _region(key))

    async def new_key(self) -> DataKey:
        """See `KeyProvider.new_key`."""
        response = await self._call(
            "generate_data_key", {"KeyId": self._key, "KeySpec": "AES_256"}, self._key
        )
        wrapped = WrappedKey(KMS, str(response["KeyId"]), bytes(response["CiphertextBlob"]))
        return DataKey(bytes(response["Plaintext"]), wrapped)

    async def unwrap(self, key: WrappedKey) -> bytes:
        """See `KeyProvider.unwrap`."""
        response = await self._call(
            "decrypt", {"KeyId": key.key_id, "CiphertextBlob": key.wrapped}, key.key_id
        )
        return bytes(response["Plaintext"])

    async def _call(self, operation: str, parameters: dict[str, Any], key: str) -> Any:
        parameters["EncryptionContext"] = self._context
        try:
            return await self._client.call(lambda kms: getattr(kms, operation)(**parameters))
        except AwsRefused as error:
            raise KeyUnavailable(
                f"KMS key {key}, context {CONTEXT}={self._context[CONTEXT]}: {error}"
            ) from None
        except SettingsError as error:
            raise KeyUnavailable(f"KMS key {key}: {error}") from None
        except AwsUnanswered as error:
            raise StoreUnavailable(f"KMS key {key}: {error}") from None


def _region(key: str) -> str:
    parts = key.split(":")
    return parts[3] if len(parts) > 5 and parts[0] == "arn" else ""
