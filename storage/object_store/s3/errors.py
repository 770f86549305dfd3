"""The meaning of an S3 server's responses for the caller.

A write has three outcomes. *Not done*: the server refused before it did anything (503 SlowDown,
429, 409, 403, a connection that was never made): repeat. *Lost*: 412, the key is taken. *Unknown*:
anything that may come after the effect (500, a gateway's 502 or 504, a timeout, a broken
connection): read back. A read is repeated whenever it did not come whole.

An absent *object* is `NoSuchKey` and nothing else: an absent bucket gives 404 too, and must never
pass for an end of a log.
"""

import re
from typing import Any

from obstore.exceptions import BaseError

from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)

CLIENT_ERRORS = (BaseError, FileNotFoundError)
"""Errors of obstore; an absent key is Python's own error."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NEVER_SENT = re.compile(r"legacy::Error\(\s*Connect,|^Unauthenticated \{", re.MULTILINE)
_CAUSE = re.compile(r'(?:message|error): "([^"]*)"|(IncompleteMessage|TimedOut|UnexpectedEof)')
_NO_RESPONSE = {
    "IncompleteMessage": "the connection broke before the response",
    "TimedOut": "timed out",
    "UnexpectedEof": "the connection broke in the middle of the response",
}

_THROTTLES = {
    *("SlowDown", "Throttling", "ThrottlingException", "ThrottledException"),
    *("RequestLimitExceeded", "TooManyRequests", "BandwidthLimitExceeded", "RequestThrottled"),
}
_UNTOUCHED = {
    "NoSuchUpload",  # 404: the parts were given up; nothing was put together
    "RequestTimeout",  # 400: the server gave up waiting for the body
    "ConditionalRequestConflict",  # 409: another conditional write is under way
    "OperationAborted",  # 409, the same of other servers
}
_ADVICE = {
    "AccessDenied": "the credentials lack the permission",
    "SignatureDoesNotMatch": "the secret key is wrong",
    "InvalidAccessKeyId": "the access key is not known there",
    "XAdminUserNotFound": "the access key is not known there",
    "ExpiredToken": "the credentials have expired",
    "RequestTimeTooSkewed": "the clock of this machine is wrong by more than 15 minutes",
    "NoSuchBucket": "there is no such bucket",
    "AuthorizationHeaderMalformed": "the region is wrong",
    "PermanentRedirect": "the bucket is in another region",
    "IllegalLocationConstraintException": "the bucket is in another region",
    "KMSAccessDenied": "the credentials may not use the KMS key",
}
_NOT_REACHED = "look at the store's endpoint, and at the network"


def obstore_error(uri: str, key: str, error: Exception, *, is_write: bool = False) -> StorageError:
    """Return the error of ours for what obstore raised."""
    text = str(error)
    status = _STATUS.search(text)
    code = _CODE.search(text)
    message = _MESSAGE.search(text)
    if status is None and "redirect without LOCATION" in text:
        return StoreRefused(f"{uri}: {key}: the bucket is in another region")
    return meaning(
        uri,
        key,
        int(status.group(1)) if status else 0,
        code.group(1) if code else "",
        message.group(1) if message else _first_cause(text),
        is_write=is_write,
        was_sent=status is not None or _NEVER_SENT.search(text) is None,
    )


def _first_cause(text: str) -> str:
    """Return what went wrong in one line, out of obstore's message and the dump that follows it."""
    found = _CAUSE.search(text)
    if found is None:
        return text.partition("\n")[0]
    return found.group(1) or _NO_RESPONSE[found.group(2)]


def boto_error(uri: str, key: str, error: Exception, *, is_write: bool = False) -> StorageError:
    """Return the error of ours for what boto3 raised."""
    from botocore.exceptions import (
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreRefused(f"{uri}: {error}")
    if isinstance(error, ClientError):
        response: dict[str, Any] = error.response
        found = response.get("Error", {})
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(found.get("Code", ""))
        message = str(found.get("Message", ""))
        return meaning(uri, key, status, code, message, is_write=is_write)
    was_sent = not isinstance(error, EndpointConnectionError | ConnectTimeoutError)
    return meaning(uri, key, 0, "", str(error), is_write=is_write, was_sent=was_sent)


def meaning(
    uri: str,
    key: str,
    status: int,
    code: str,
    message: str,
    *,
    is_write: bool = False,
    was_sent: bool = True,
) -> StorageError:
    """Return the error for a response: `status` 0 stands for none, of a request that was sent or
    never left.
    """
    response = " ".join(one for one in (str(status or "no response"), code, message) if one)
    what = f"{uri}: {key}: {response}"[:400]
    if status == 412 and is_write:
        return ObjectExists(key)
    if code == "NoSuchKey" and not is_write:
        return ObjectNotFound(key)
    if status == 416:
        return CorruptObject(key, 0, "the requested range is beyond the object's end")
    if code in _THROTTLES or status == 429:
        return StoreThrottled(what)
    if not was_sent:
        return StoreUnavailable(f"{what} ({_NOT_REACHED})")
    if status == 409 or code in _UNTOUCHED:
        return StoreUnavailable(what)
    if 300 <= status < 500:
        advice = _ADVICE.get(code, "")
        return StoreRefused(f"{what} ({advice})" if advice else what)
    return OutcomeUnknown(what) if is_write else StoreUnavailable(what)
