"""A store that cannot be trusted is refused at the start, in one line that says what to do."""

import random
from collections.abc import Sequence

import pytest

from bench.s3_server import S3Server
from lakehead.storage.errors import SettingsError, StoreRefused, StoreUnavailable
from lakehead.storage.object_store import MemoryStore, check_store, open_store
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.broker_process import BrokerProcess
from tests.support.s3_proxy import (
    ACCESS_DENIED,
    SLOW_DOWN,
    Answer,
    Fault,
    FaultProxy,
    Rule,
    operation,
)


async def complaint(
    server: S3Server, rules: Sequence[Rule] = (), options: str = "", bucket: str = ""
) -> str:
    """What the check says of the server behind a proxy with rules; empty if nothing."""
    async with FaultProxy(server.endpoint, rules=rules) as proxy:
        uri = f"s3://{bucket or server.bucket}/a/b?endpoint={proxy.endpoint}{options}"
        store = S3Store(uri)
        try:
            await check_store(store, rng=random.Random(1))
        except (SettingsError, StoreUnavailable) as error:
            return str(error)
        finally:
            await store.close()
    return ""


async def test_a_good_store_passes_with_few_requests_and_keeps_nothing(s3_server: S3Server) -> None:
    async with FaultProxy(s3_server.endpoint) as proxy:
        store = open_store(f"{s3_server.uri}?endpoint={proxy.endpoint}")
        await check_store(store, rng=random.Random(1))
        assert proxy.seen.requests.total() <= 25
        assert list(await store.list("")) == []
        assert await store.abort_uploads(before_ms=2**62) == 0
        await store.close()
    await check_store(MemoryStore(), rng=random.Random(1))


@pytest.mark.parametrize(
    ("operation", "permission"),
    [
        ("PUT", "s3:PutObject"),
        ("GET", "s3:GetObject"),
        ("LIST", "s3:ListBucket"),
        ("DELETE_OBJECTS", "s3:DeleteObject"),
        ("CREATE_UPLOAD", "s3:PutObject"),
        ("ABORT_UPLOAD", "s3:AbortMultipartUpload"),
        ("LIST_UPLOADS", "s3:ListBucketMultipartUploads"),
    ],
)
async def test_a_missing_permission_is_named(
    s3_server: S3Server, operation: str, permission: str
) -> None:
    said = await complaint(s3_server, [Rule(fault=ACCESS_DENIED, operations=(operation,))])
    assert f"the credentials lack {permission} (bucket {s3_server.bucket}, keys a/b/*)" in said


async def test_all_missing_permissions_are_named_at_once(s3_server: S3Server) -> None:
    denied = ("GET", "DELETE_OBJECTS", "ABORT_UPLOAD")
    said = await complaint(s3_server, [Rule(fault=ACCESS_DENIED, operations=denied)])
    assert "lack s3:GetObject, s3:AbortMultipartUpload, s3:DeleteObject (" in said


async def test_a_store_that_ignores_conditions_is_refused(s3_server: S3Server) -> None:
    ignores = Rule(fault=Fault.NO_CONDITION, operations=("PUT",))
    assert "ignores If-None-Match" in await complaint(s3_server, [ignores])
    knows_not = Rule(fault=Answer(501, "NotImplemented"), operations=("PUT",))
    assert "has no conditional put" in await complaint(s3_server, [knows_not])


async def test_without_a_condition_for_parts_large_objects_go_in_one_request(
    s3_server: S3Server,
) -> None:
    for fault in (Fault.NO_CONDITION, Answer(501, "NotImplemented")):
        rules = [Rule(fault=fault, operations=("COMPLETE_UPLOAD",))]
        async with FaultProxy(s3_server.endpoint, rules=rules) as proxy:
            store = S3Store(f"{s3_server.uri}?endpoint={proxy.endpoint}")
            await check_store(store, rng=random.Random(1))
            assert not store.may_multipart
            await store.close()


async def test_a_server_that_checks_crcs_gets_them_in_place_of_hashes(s3_server: S3Server) -> None:
    async with FaultProxy(s3_server.endpoint) as proxy:
        store = S3Store(f"{s3_server.uri}?endpoint={proxy.endpoint}")
        await check_store(store, rng=random.Random(1))
        assert store.checks_crc
        await store.create("data/key", [b"body"])
        sent = proxy.heads[-1]
        assert sent.header("x-amz-content-sha256") == "UNSIGNED-PAYLOAD"
        assert sent.header("x-amz-checksum-crc64nvme")
        assert await store.get("data/key") == b"body"
        assert [meta.key for meta in await store.list("check/")] == []
        await store.close()


@pytest.mark.parametrize(
    "rule",
    [
        Rule(fault=Answer(200, "OK"), key="wrong-crc"),
        Rule(fault=Answer(501, "NotImplemented"), key="wrong-crc"),
        Rule(fault=Answer(400, "InvalidRequest"), key="right-crc"),
    ],
    ids=["ignores them", "does not know them", "refuses a right one"],
)
async def test_a_server_that_does_not_check_crcs_gets_hashes(
    s3_server: S3Server, rule: Rule
) -> None:
    async with FaultProxy(s3_server.endpoint, rules=[rule]) as proxy:
        store = S3Store(f"{s3_server.uri}?endpoint={proxy.endpoint}")
        await check_store(store, rng=random.Random(1))
        assert not store.checks_crc
        await store.create("data/key", [b"body"])
        assert len(proxy.heads[-1].header("x-amz-content-sha256")) == 64
        assert not proxy.heads[-1].header("x-amz-checksum-crc64nvme")
        await store.close()


async def test_trouble_that_passes_is_waited_out(s3_server: S3Server) -> None:
    rules = [
        Rule(fault=SLOW_DOWN, probability=0.2, first=5),
        Rule(fault=Fault.LOST_ANSWER, operations=("GET", "PUT", "UPLOAD_PART"), first=2),
    ]
    assert await complaint(s3_server, rules) == ""


async def test_the_wrong_place_is_said(s3_server: S3Server) -> None:
    said = await complaint(s3_server, options="&region=eu-west-1")
    assert "is in the region us-east-1, not in eu-west-1" in said
    assert "there is no bucket absent" in await complaint(s3_server, bucket="absent")
    store = S3Store("s3://lake?endpoint=http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match=r"cannot reach http://127\.0\.0\.1:1"):
        await check_store(store, rng=random.Random(1))
    await store.close()


async def test_wrong_credentials_are_said(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "does not accept the credentials: SignatureDoesNotMatch" in await complaint(s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "does not accept the credentials" in await complaint(s3_server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", "absent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "absent")
    assert "there are no AWS credentials" in await complaint(s3_server)
    assert "profile (nobody) could not be found" in await complaint(
        s3_server, options="&profile=nobody"
    )
    skewed = Rule(fault=Answer(403, "RequestTimeTooSkewed"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    assert "the clock of this machine is wrong" in await complaint(s3_server, [skewed])


async def test_credentials_of_a_profile_are_used(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The standard chain: what is not in the environment is in the user's files."""
    folder = tmp_path_factory.mktemp("aws")
    keys = f"aws_access_key_id={s3_server.access_key}\n"
    keys += f"aws_secret_access_key={s3_server.secret_key}\n"
    (folder / "credentials").write_text(f"[lake]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert await complaint(s3_server, options="&profile=lake") == ""
    monkeypatch.setenv("AWS_PROFILE", "lake")
    assert await complaint(s3_server) == ""


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ("sse=AES256", {"x-amz-server-side-encryption": "AES256"}),
        (
            "sse=aws:kms&kms_key=arn:aws:kms:us-east-1:1:key/2&bucket_key=true",
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:us-east-1:1:key/2",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
        ),
    ],
)
async def test_encryption_is_asked_for_by_every_write(
    s3_server: S3Server, options: str, headers: dict[str, str]
) -> None:
    async with FaultProxy(s3_server.endpoint, rules=[Rule(fault=ACCESS_DENIED)]) as proxy:
        store = S3Store(f"{s3_server.uri}/p?endpoint={proxy.endpoint}&{options}")
        with pytest.raises(StoreRefused):
            await store.create("k", [b"x"])
        with pytest.raises(StoreRefused):
            await store.in_thread(lambda: store.multipart.begin("large"))
        await store.close()
        assert [operation(head)[0] for head in proxy.heads] == ["PUT", "CREATE_UPLOAD"]
        for head in proxy.heads:
            assert {name: head.header(name) for name in headers} == headers


def test_a_broker_says_why_it_does_not_start(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broker")
    broker = BrokerProcess(folder, ("--store", "s3://absent-bucket/x", "--wal.size", "64m"))
    with pytest.raises(Exception, match="there is no bucket absent-bucket"):
        broker.start()
    assert "Traceback" not in broker.log
    assert broker.log.count("absent-bucket") <= 2
