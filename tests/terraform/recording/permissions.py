"""Which permissions a request to S3 needs: what S3 asks IAM, and through S3 KMS.

By "Required permissions for Amazon S3 API operations" and "Actions, resources, and condition keys
for Amazon S3" (service authorization reference), and "Protecting data with SSE-KMS". A request
that is not known raises: what it needs is to be looked up, not guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.terraform.recording.s3_door import S3Call

_BUCKET_READS = {
    "location": "s3:GetBucketLocation",
    "uploads": "s3:ListBucketMultipartUploads",
    "versioning": "s3:GetBucketVersioning",
    "acl": "s3:GetBucketAcl",
    "policy": "s3:GetBucketPolicy",
}
_SIGNATURE = {"x-id"}
_LISTING = {
    *("list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token"),
    *("encoding-type", "fetch-owner", "marker"),
}
_UPLOADS = {"uploads", "prefix", "key-marker", "upload-id-marker", "max-uploads", "encoding-type"}
_SENT_WITH = {
    "x-amz-acl": "s3:PutObjectAcl",
    "x-amz-tagging": "s3:PutObjectTagging",
    "x-amz-object-lock-mode": "s3:PutObjectRetention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What is needed: an action on a resource, with the condition keys that a policy may look at.
    Resources are `BUCKET`, `BUCKET/key` or `KEY` (the bucket's KMS key).
    """

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


class UnknownCall(Exception):
    """A request of which nobody has said yet what it needs."""


def needed(call: S3Call) -> Iterator[Permission]:
    """Yield what a request to a bucket with SSE-KMS needs. Raises UnknownCall."""
    if not call.bucket:
        raise UnknownCall(f"{call.method} / {call.query}")
    names = set(call.query) - _SIGNATURE
    if not call.key:
        yield from _of_bucket(call, names)
        return
    read = Permission(action="s3:GetObject", resource=f"BUCKET/{call.key}")
    if call.method in ("GET", "HEAD") and not names:
        yield read
        yield _through_s3("kms:Decrypt")
        if call.status == 404:
            # Without it an absent object is answered with 403. The question has no s3:prefix.
            yield Permission(action="s3:ListBucket", resource="BUCKET")
    elif call.method == "GET" and "uploadId" in names:
        yield Permission(action="s3:ListMultipartUploadParts", resource=f"BUCKET/{call.key}")
    elif call.method == "DELETE" and not names:
        yield Permission(action="s3:DeleteObject", resource=f"BUCKET/{call.key}")
    elif call.method == "DELETE" and names == {"uploadId"}:
        yield Permission(action="s3:AbortMultipartUpload", resource=f"BUCKET/{call.key}")
    elif call.method in ("PUT", "POST") and names <= {"uploads", "uploadId", "partNumber"}:
        yield from _of_write(call, names)
    else:
        raise UnknownCall(f"{call.method} of an object with {sorted(names)}")


def _of_write(call: S3Call, names: set[str]) -> Iterator[Permission]:
    yield Permission(action="s3:PutObject", resource=f"BUCKET/{call.key}")
    yield _through_s3("kms:GenerateDataKey")
    if names:
        yield _through_s3("kms:Decrypt")  # parts are put together
    if "if-match" in call.headers:
        yield Permission(action="s3:GetObject", resource=f"BUCKET/{call.key}")
    for name, action in _SENT_WITH.items():
        if name in call.headers:
            yield Permission(action=action, resource=f"BUCKET/{call.key}")
    if source := call.headers.get("x-amz-copy-source", ""):
        bucket, _, key = source.lstrip("/").partition("/")
        if bucket != call.bucket:
            raise UnknownCall(f"copy from another bucket: {source}")
        yield Permission(action="s3:GetObject", resource=f"BUCKET/{key}")
        yield _through_s3("kms:Decrypt")


def _of_bucket(call: S3Call, names: set[str]) -> Iterator[Permission]:
    if call.method == "POST" and names == {"delete"}:
        for key in call.deleted:
            yield Permission(action="s3:DeleteObject", resource=f"BUCKET/{key}")
    elif call.method == "HEAD" and not names:
        yield Permission(action="s3:ListBucket", resource="BUCKET")
    elif call.method == "GET" and names <= _LISTING:
        context = {} if "prefix" not in names else {"s3:prefix": call.query["prefix"]}
        yield Permission(action="s3:ListBucket", resource="BUCKET", context=context)
    elif call.method == "GET" and "uploads" in names and names <= _UPLOADS:
        yield Permission(action="s3:ListBucketMultipartUploads", resource="BUCKET")
    elif call.method == "GET" and len(names) == 1 and (action := _BUCKET_READS.get(*names)):
        yield Permission(action=action, resource="BUCKET")
    else:
        raise UnknownCall(f"{call.method} of a bucket with {sorted(names)}")


def _through_s3(action: str) -> Permission:
    return Permission(action=action, resource="KEY", context={"kms:ViaService": "s3.REGION"})
