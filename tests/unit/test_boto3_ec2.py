"""EC2 through boto3: what its answers mean, by a server that says what it is told, and by moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from lakehead.storage.aws.ec2 import Boto3Ec2
from lakehead.storage.errors import SettingsError
from tests.support.aws_answers import ERROR, Answers, serve_answers

VOLUMES = """<DescribeVolumesResponse><volumeSet><item><volumeId>vol-00000001</volumeId>
<availabilityZone>z-1a</availabilityZone><status>in-use</status>
<multiAttachEnabled>true</multiAttachEnabled><attachmentSet>
<item><instanceId>i-0</instanceId><status>attached</status></item>
<item><instanceId>i-1</instanceId><status>detached</status></item></attachmentSet>
<tagSet><item><key>lakehead:wal</key><value>a-0</value></item></tagSet>
</item></volumeSet></DescribeVolumesResponse>"""


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, credentials: None) -> Iterator[Answers]:
    with serve_answers() as said:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", said.address)
        yield said


async def test_what_ec2_answers_is_told_apart(answers: Answers) -> None:
    ec2 = Boto3Ec2("eu-west-1")
    answers.text = VOLUMES
    (volume,) = await ec2.volumes(tags={"lakehead:wal": "a-0"})
    assert (volume.volume_id, volume.zone, volume.is_shared) == ("vol-00000001", "z-1a", True)
    assert [a.instance_id for a in volume.attachments] == ["i-0"]
    assert volume.tags == {"lakehead:wal": "a-0"}
    assert answers.asked[0]["Filter.1.Name"] == "tag:lakehead:wal"

    for status, code in ((500, "InternalError"), (503, "Unavailable"), (400, "Throttling")):
        answers.status, answers.text = status, ERROR.format(code, "later")
        with pytest.raises(AwsUnanswered, match=code):
            await ec2.attach("vol-00000001", "i-0", "/dev/sdf")
    answers.status, answers.text = 400, ERROR.format("VolumeInUse", "is attached")
    with pytest.raises(AwsRefused, match="VolumeInUse: is attached") as refused:
        await ec2.attach("vol-00000001", "i-0", "/dev/sdf")
    assert refused.value.code == "VolumeInUse"
    answers.text = None
    before = len(answers.asked)
    with pytest.raises(AwsUnanswered):
        await ec2.attach("vol-00000001", "i-0", "/dev/sdf")
    assert len(answers.asked) == before + 1  # a call is made once: who asked looks what it did


async def test_without_credentials_it_is_one_clear_line(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(SettingsError, match="give the instance a profile"):
        await Boto3Ec2("eu-west-1").volumes()
    assert answers.asked == []


@pytest.mark.slow
async def test_the_calls_are_those_that_motos_ec2_understands(credentials: None) -> None:
    import boto3

    moto = pytest.importorskip("moto", reason="moto, an EC2 of others, is not installed")

    with moto.mock_aws():
        client = boto3.Session().client("ec2", region_name="us-east-1")
        image = client.describe_images()["Images"][0]["ImageId"]
        started = client.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]
        instance_id, zone = started["InstanceId"], started["Placement"]["AvailabilityZone"]
        made = client.create_volume(
            AvailabilityZone=zone,
            Size=10,
            TagSpecifications=[
                {"ResourceType": "volume", "Tags": [{"Key": "lakehead:wal", "Value": "a-0"}]}
            ],
        )
        ec2 = Boto3Ec2("us-east-1")
        (volume,) = await ec2.volumes(tags={"lakehead:wal": "a-0"})
        assert (volume.volume_id, volume.zone) == (made["VolumeId"], zone)
        assert await ec2.volumes(tags={"lakehead:wal": "a-1"}) == []
        assert await ec2.volumes(volume_id="vol-00000000000000000") == []
        assert await ec2.instance("i-00000000000000000") is None
        await ec2.attach(volume.volume_id, instance_id, "/dev/sdf")
        (volume,) = await ec2.volumes(volume_id=volume.volume_id)
        assert [a.instance_id for a in volume.attachments] == [instance_id]
        known = await ec2.instance(instance_id)
        assert known is not None
        assert known.state == "running"
        assert "/dev/sdf" in known.device_names
        with pytest.raises(AwsRefused):
            await ec2.attach("vol-00000000000000000", instance_id, "/dev/sdg")
        await ec2.detach(volume.volume_id, instance_id, by_force=True)
        (volume,) = await ec2.volumes(volume_id=volume.volume_id)
        assert volume.attachments == ()
