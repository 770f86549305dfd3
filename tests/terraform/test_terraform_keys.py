"""No change of keys and no destroy makes unreadable what was written, on an AWS of this machine.
`make tf-cycle` runs this.
"""

import asyncio
import random
import tomllib
from pathlib import Path

import pytest

from lakehead.storage.encryption.chunks import Trailer
from lakehead.storage.object_store import open_retrying_store
from tests.terraform.emulator import Emulator
from tests.terraform.terraform import plain
from tests.terraform.test_terraform_cycle import (
    BUCKET,
    HOST,
    VOLUME,
    Place,
    ask_here,
    place,
    put_object,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KEY = "module.lakehead.module.storage.aws_kms_key.this[0]"
RECORDS = b"4111-1111-1111-1111 " * 4096


def key_of_yours(aws: Emulator) -> str:
    arn: str = aws.client("kms").create_key(Description="of the platform team")["KeyMetadata"][
        "Arn"
    ]
    return arn


def volume_keys(aws: Emulator) -> dict[str, str]:
    found = aws.client("ec2").describe_volumes(
        Filters=[{"Name": "tag-key", "Values": ["lakehead:wal"]}]
    )
    return {one["VolumeId"]: one["KmsKeyId"] for one in found["Volumes"]}


def bring_key(where: Place, arn: str, *, own: bool | None) -> None:
    """Change the configuration as a platform team does that has a key for everything."""
    line = "" if own is None else f"  own_kms_key = {str(own).lower()}\n"
    where.terraform.override("key", f'module "lakehead" {{\n  kms_key_arn = "{arn}"\n{line}}}\n')


def test_a_key_of_yours_brought_later_leaves_first_key_and_volumes(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as where:
        terraform, aws = where.terraform, where.aws
        terraform.apply()
        put_object(aws)
        first, volumes = where.cluster().key_arn, volume_keys(aws)
        assert len(volumes) == 2
        bring_key(where, key_of_yours(aws), own=None)
        assert "add own_kms_key = true" in terraform.refused_plan()

        bring_key(where, mine := key_of_yours(aws), own=True)
        changes = terraform.plan().changes
        assert not any("delete" in what for what in changes.values()), changes
        assert not any(one.startswith((KEY, VOLUME, HOST)) for one in changes), changes
        terraform.apply_planned()
        assert where.cluster().key_arn == mine
        states = {
            arn: aws.client("kms").describe_key(KeyId=arn)["KeyMetadata"]["KeyState"]
            for arn in (first, mine)
        }
        assert set(states.values()) == {"Enabled"}
        assert volume_keys(aws) == volumes

        bring_key(where, key_of_yours(aws), own=True)
        assert not any("delete" in what for what in terraform.plan().changes.values())


def test_snapshots_that_a_destroy_leaves_are_not_encrypted_by_the_key_that_it_ends(
    tmp_path: Path,
) -> None:
    with place(tmp_path, "minimal") as where:
        terraform, aws = where.terraform, where.aws
        terraform.apply()
        first = where.cluster().key_arn
        of_volumes = set(volume_keys(aws).values())  # EC2 gives a snapshot its volume's key
        assert len(of_volumes) == 1
        assert first not in of_volumes
        said = terraform.destroy(codes=(1,)).text
        assert BUCKET in said
        assert "force_destroy = true" in said
        terraform.override("end", 'module "lakehead" {\n  force_destroy = true\n}\n')
        terraform.apply()
        terraform.destroy()
        kms, ec2 = aws.client("kms"), aws.client("ec2")
        assert kms.describe_key(KeyId=first)["KeyMetadata"]["KeyState"] == "PendingDeletion"
        left = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        ours = [one for one in left if {"Key": "lakehead:bucket", "Value": BUCKET} in one["Tags"]]
        assert len(ours) == 2
        assert first not in {one.get("KmsKeyId") for one in ours}


def encrypt(where: Place, line: str) -> None:
    where.terraform.override("encryption", f'module "lakehead" {{\n{line}\n}}\n')


def settings_of_hosts(aws: Emulator) -> dict[str, str]:
    key = "lakehead-settings/brokers.toml"
    body = aws.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read().decode()
    found: dict[str, str] = tomllib.loads(body)
    return {name: found[name] for name in found if name.startswith("encryption")}


async def written_by_a_node(address: str) -> None:
    """Write and read an object as programs with this address of the store do."""
    store = open_retrying_store(address, rng=random.SystemRandom())
    try:
        await store.create("data/a/0-0-0", [RECORDS])
        assert await store.get("data/a/0-0-0") == RECORDS
    finally:
        await store.close()


def test_nodes_have_their_key_before_one_of_them_encrypts_and_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, "minimal") as where:
        terraform, aws = where.terraform, where.aws
        terraform.apply()
        assert settings_of_hosts(aws) == {}
        encrypt(where, "encryption = {}")
        assert "Apply encryption = { enabled = false } first" in terraform.refused_plan()
        assert settings_of_hosts(aws) == {}
        encrypt(where, "encryption = { enabled = false }")
        changes = terraform.plan().changes
        assert not any(one.startswith((HOST, VOLUME)) for one in changes), changes
        terraform.apply_planned()
        key = terraform.output("cluster")["node_keys"]["own"]
        assert settings_of_hosts(aws) == {
            "encryption.key.provider": "none",
            "encryption.kms.key": key,
        }
        encrypt(where, "encryption = {}")
        terraform.apply()
        terraform.check_nothing_to_do()
        ask_here(aws, monkeypatch)
        s3 = aws.client("s3")
        policy = s3.get_bucket_policy(Bucket=BUCKET)["Policy"]
        s3.delete_bucket_policy(Bucket=BUCKET)  # requests here are not TLS
        store = terraform.output("cluster")["store"]
        asyncio.run(written_by_a_node(store.replace("#", f"?endpoint={aws.address}#")))
        stored = s3.get_object(Bucket=BUCKET, Key="lakehead/data/a/0-0-0")["Body"].read()
        assert Trailer.decode("data/a/0-0-0", stored, len(stored)).key.key_id == key
        assert RECORDS not in stored
        s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)

        encrypt(where, "")
        refused = plain(
            terraform.run("apply", "-auto-approve", *terraform.given(), codes=(1,)).text
        )
        assert "The keys of encryption were kept" in refused
        assert settings_of_hosts(aws)["encryption.key.provider"] == "kms"
        encrypt(where, "encryption = {}")
        assert key in terraform.output("cluster")["broker_policy_json"]
        terraform.check_nothing_to_do()
        encrypt(where, "encryption = {}\nforce_destroy = true")
        terraform.apply()
        terraform.destroy()
        kms = aws.client("kms")
        assert kms.describe_key(KeyId=key)["KeyMetadata"]["KeyState"] == "PendingDeletion"
