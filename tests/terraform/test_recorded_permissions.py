"""What requests to S3 need, and how needs become patterns that stay the same from run to run."""

import pytest

from tests.terraform.recording.calls import distinct, pattern, read_needs
from tests.terraform.recording.permissions import UnknownCall, needed
from tests.terraform.recording.s3_door import S3Call

READ = ["s3:GetObject", "kms:Decrypt"]
WRITE = ["s3:PutObject", "kms:GenerateDataKey"]


def call(method: str, key: str = "", query: str = "", status: int = 200, **headers: str) -> S3Call:
    return S3Call(
        run="a run",
        method=method,
        bucket="lake",
        key=key,
        query=dict(one.partition("=")[::2] for one in query.split("&") if one),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        status=status,
        deleted=("a/1", "a/2") if query == "delete" else (),
    )


@pytest.mark.parametrize(
    ("made", "actions"),
    [
        (call("GET", "k"), READ),
        (call("HEAD", "k"), READ),
        (call("GET", "k", status=404), [*READ, "s3:ListBucket"]),
        (call("PUT", "k"), WRITE),
        (call("PUT", "k", if_none_match="*"), WRITE),
        (call("PUT", "k", if_match="1"), [*WRITE, "s3:GetObject"]),
        (call("PUT", "k", x_amz_acl="private"), [*WRITE, "s3:PutObjectAcl"]),
        (call("PUT", "k", x_amz_copy_source="/lake/from"), [*WRITE, *READ]),
        (call("POST", "k", "uploads"), [*WRITE, "kms:Decrypt"]),
        (call("PUT", "k", "partNumber=1&uploadId=u"), [*WRITE, "kms:Decrypt"]),
        (call("POST", "k", "uploadId=u"), [*WRITE, "kms:Decrypt"]),
        (call("DELETE", "k", "uploadId=u"), ["s3:AbortMultipartUpload"]),
        (call("GET", "k", "uploadId=u"), ["s3:ListMultipartUploadParts"]),
        (call("DELETE", "k"), ["s3:DeleteObject"]),
        (call("POST", "", "delete"), ["s3:DeleteObject", "s3:DeleteObject"]),
        (call("HEAD"), ["s3:ListBucket"]),
        (call("GET", "", "list-type=2&prefix=a/"), ["s3:ListBucket"]),
        (call("GET", "", "uploads&prefix=a/"), ["s3:ListBucketMultipartUploads"]),
        (call("GET", "", "location"), ["s3:GetBucketLocation"]),
    ],
)
def test_what_a_request_needs(made: S3Call, actions: list[str]) -> None:
    assert [one.action for one in needed(made)] == actions


@pytest.mark.parametrize(
    "made",
    [
        call("GET", "k", "versionId=1"),
        call("PUT", "k", "tagging"),
        call("DELETE"),
        call("PUT", "", "policy"),
        call("GET", "", "list-type=2&unheard-of"),
        call("PUT", "k", x_amz_copy_source="/another/from"),
    ],
)
def test_what_nobody_has_looked_up_is_not_guessed(made: S3Call) -> None:
    with pytest.raises(UnknownCall):
        list(needed(made))


def test_the_question_of_an_absent_object_has_no_prefix() -> None:
    (listing,) = (one for one in needed(call("GET", "k", status=404)) if "List" in one.action)
    assert not listing.context
    (listing,) = needed(call("GET", "", "list-type=2&prefix=lakehead/wal/3/"))
    assert listing.context == {"s3:prefix": "lakehead/wal/3/"}


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("lakehead/data/7f/1-2-3", "lakehead/data/..."),
        ("lakehead/data/", "lakehead/data/"),
        ("lakehead/meta-before-107/log/1.json", "lakehead/meta-before-N/..."),
        ("tables/orders/_delta_log/0.json", "tables/..."),
        ("tables/", "tables/"),
        ("tables", "tables"),
        ("elsewhere/a/b", "elsewhere/a/b"),
    ],
)
def test_patterns(key: str, kept: str) -> None:
    assert pattern(key) == kept


def test_calls_become_distinct_needs_with_their_runs() -> None:
    found = distinct([call("DELETE", f"lakehead/wal/1/0/{number}") for number in range(3)])
    assert [(need.line, runs) for need, runs in found.items()] == [
        ("s3:DeleteObject BUCKET/lakehead/wal/...", ("a run",))
    ]


def test_recordings_are_compared_by_what_policies_tell_apart() -> None:
    areas = {need.area for needs in read_needs().values() for need in needs}
    assert {need.resource for need in areas} == {
        "KEY",
        "BUCKET",
        "BUCKET/lakehead",
        "BUCKET/tables",
    }
    assert {one for need in areas for name, one in need.context if name == "s3:prefix"} == {
        "lakehead",
        "tables",
    }


def test_what_is_committed_is_of_a_cluster_and_its_tables_only() -> None:
    for who, needs in read_needs().items():
        for need in needs:
            place, _, key = need.resource.partition("/")
            assert place in ("BUCKET", "KEY"), who
            assert not key or key.split("/")[0] in ("lakehead", "tables"), need.line
