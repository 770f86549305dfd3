"""What a store's URI says, and how the environment completes it."""

from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store import open_store
from lakehead.storage.object_store.s3.settings import OPTIONS, S3Settings, parse_uri

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_a_bucket_and_a_prefix_are_enough() -> None:
    assert parse_uri("s3://lake", {}) == S3Settings(bucket="lake")
    assert parse_uri("s3://lake/a/b/", {}) == S3Settings(bucket="lake", prefix="a/b")
    assert parse_uri("s3://lake/a", {}).full_key("k/1") == "a/k/1"
    assert parse_uri("s3://lake", {}).full_key("k/1") == "k/1"


def test_options_come_from_the_uri() -> None:
    uri = (
        "s3://lake/p?region=eu-west-1&endpoint=https://s3.local:9000/&path_style=false"
        "&profile=ci&sse=aws:kms&kms_key=arn:aws:kms:eu-west-1:1:key/2&bucket_key=true"
        "&multipart=false"
    )
    assert parse_uri(uri, {}) == S3Settings(
        bucket="lake",
        prefix="p",
        region="eu-west-1",
        endpoint="https://s3.local:9000",
        is_path_style=False,
        profile="ci",
        encryption="aws:kms",
        kms_key="arn:aws:kms:eu-west-1:1:key/2",
        has_bucket_key=True,
        may_multipart=False,
    )


def test_the_environment_completes_and_the_uri_goes_first() -> None:
    environment = {
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://general",
        "AWS_ENDPOINT_URL_S3": "http://s3",
        "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
        "AWS_SSE_KMS_KEY_ID": "key",
    }
    found = parse_uri("s3://lake", environment)
    assert (found.region, found.endpoint) == ("eu-west-1", "http://s3")
    assert (found.encryption, found.kms_key) == ("aws:kms", "key")
    assert parse_uri("s3://lake?region=us-west-2", environment).region == "us-west-2"
    assert parse_uri("s3://lake", {"AWS_DEFAULT_REGION": "x"}).region == "x"


def test_the_bucket_is_in_the_path_where_a_host_name_cannot_hold_it() -> None:
    assert not parse_uri("s3://lake", {}).is_path_style
    assert parse_uri("s3://lake.with.dots", {}).is_path_style
    assert parse_uri("s3://lake?endpoint=http://127.0.0.1:9000", {}).is_path_style
    assert parse_uri("s3://lake--use1-az4--x-s3", {}).is_express


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://lake?regoin=x", "unknown option 'regoin': there are region, endpoint"),
        ("s3://lake?region", "unknown option"),
        ("s3://lake?endpoint=localhost:9000", "is not a URL"),
        ("s3://lake?path_style=perhaps", "neither true nor false"),
        ("s3://lake?sse=rot13", "not one of AES256, aws:kms"),
        ("s3://lake?kms_key=k", "needs sse=aws:kms"),
        ("s3://lake?sse=AES256&kms_key=k", "needs sse=aws:kms"),
    ],
)
def test_what_cannot_be_is_one_clear_line(uri: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as raised:
        open_store(uri)
    assert "\n" not in str(raised.value)


def test_every_option_is_documented() -> None:
    text = (DOCS / "storage" / "object-stores.md").read_text()
    assert [name for name in OPTIONS if f"`{name}`" not in text] == []


def test_a_secret_that_is_taken_for_an_option_is_not_shown() -> None:
    """The line may be in a log, and in the record of a run that consoles show."""
    with pytest.raises(SettingsError) as refused:
        parse_uri("s3://lake/prefix?secret_access_key=Xyzzy")
    assert "'s3://lake/prefix' has an unknown option 'secret_access_key'" in str(refused.value)
    assert "Xyzzy" not in str(refused.value)
