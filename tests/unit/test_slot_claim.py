"""`lakehead slot claim` as a process, and its calls through boto3: by a server, and by moto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.broker.cli.slot import kept_address
from lakehead.broker.ec2.slots import Boto3NetworkInterfaces
from lakehead.broker.setting_sources import load
from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from tests.support.aws_answers import ERROR, Answers, serve_answers
from tests.support.fake_imds import FakeImds, serve_imds
from tests.support.template_process import lakehead_command

ROOT = Path(__file__).resolve().parents[2]
INTERFACES = """<DescribeNetworkInterfacesResponse><networkInterfaceSet>{}</networkInterfaceSet>
</DescribeNetworkInterfacesResponse>"""
INTERFACE = """<item><networkInterfaceId>eni-{number}</networkInterfaceId>
<availabilityZone>{zone}</availabilityZone><privateIpAddress>127.0.0.{number}</privateIpAddress>
{attachment}<tagSet><item><key>lakehead:bucket</key><value>b</value></item>
<item><key>lakehead:cluster</key><value>c</value></item>
<item><key>lakehead:slot</key><value>a-{number}</value></item>
<item><key>lakehead:node-id</key><value>{number}00</value></item></tagSet></item>"""
ATTACHMENT = """<attachment><instanceId>{}</instanceId><deviceIndex>1</deviceIndex>
<status>{}</status></attachment>"""
ATTACHED = """<AttachNetworkInterfaceResponse><attachmentId>eni-attach-1</attachmentId>
</AttachNetworkInterfaceResponse>"""


def interface(number: int, holder: str = "", status: str = "attached") -> str:
    attachment = ATTACHMENT.format(holder, status) if holder or status == "of a service" else ""
    return INTERFACE.format(number=number, zone="eu-west-1a", attachment=attachment)


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with serve_answers() as said:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", said.address)
        yield said


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImds]:
    with serve_imds() as served:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", served.endpoint)
        served.tag(bucket="b", cluster="c", group="c")
        yield served


def test_a_machine_takes_the_lowest_slot_that_nobody_has_and_its_nodes_read_it(
    ec2: Answers, imds: FakeImds, tmp_path: Path
) -> None:
    taken = {1: "i-9"}

    def reply(asked: dict[str, str]) -> tuple[int, str]:
        if asked["Action"] == "DescribeNetworkInterfaces":
            # What it shows is old: another one has just taken the second.
            return 200, INTERFACES.format(
                "".join(interface(n, taken.get(n, "")) for n in (3, 2, 1))
            )
        if asked["NetworkInterfaceId"] == "eni-2":
            return 400, ERROR.format("InvalidNetworkInterface.InUse", "eni-2 is in use")
        return 200, ATTACHED

    ec2.reply = reply
    file = tmp_path / "slot.env"
    done = lakehead_command("slot", "claim", "--write", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "slot a-3 of c: node 300 at 127.0.0.3\n"
    assert [ec2.asked[0][f"Filter.{n}.Name"] for n in (1, 2)] == [
        "tag:lakehead:bucket",
        "tag:lakehead:cluster",
    ]
    assert [one["NetworkInterfaceId"] for one in ec2.asked[1:]] == ["eni-2", "eni-3"]
    assert {(one["InstanceId"], one["DeviceIndex"]) for one in ec2.asked[1:]} == {("i-0a", "1")}

    variables = dict(line.split("=") for line in file.read_text().splitlines())
    settings = load(environment=variables)
    assert (settings.node_id, settings.host_id) == (300, "c-a-3")
    assert (settings.broker_rack, settings.advertised_host) == ("euw1-az2", "127.0.0.3")
    assert [one.name for one in tmp_path.iterdir()] == ["slot.env"]

    # Started again, it asks nobody: the address says whose the slot is.
    asked = len(ec2.asked)
    assert lakehead_command("slot", "claim", "--write", str(file)).returncode == 0
    assert len(ec2.asked) == asked


@pytest.mark.parametrize(
    "text", ["", "\0\n", "LAKEHEAD_ADVERTISED_HOST=\n", "LAKEHEAD_ADVERTISED_HOST=192.0.2.7\n", "x"]
)
def test_a_file_that_names_no_address_of_this_machine_is_not_believed(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "slot.env"
    assert kept_address(file) == ""
    file.write_text(text)
    assert kept_address(file) == ""
    file.write_text("LAKEHEAD_NODE_ID=1\nLAKEHEAD_ADVERTISED_HOST=127.0.0.1\n")
    assert kept_address(file) == "127.0.0.1"


def test_what_fails_is_one_line_and_leaves_no_file(
    ec2: Answers, imds: FakeImds, tmp_path: Path
) -> None:
    ec2.status, ec2.text = 403, ERROR.format("UnauthorizedOperation", "You are not authorized")
    file = tmp_path / "slot.env"
    done = lakehead_command("slot", "claim", "--write", str(file))
    assert done.returncode == 1
    assert done.stderr.startswith("lakehead: no slot may be claimed by i-0a: AWS refuses: Unauth")
    assert done.stderr.count("\n") == 1
    assert not file.exists()


async def test_what_ec2_says_of_interfaces_is_told_apart(ec2: Answers) -> None:
    calls = Boto3NetworkInterfaces("eu-west-1")
    ec2.text = INTERFACES.format(
        interface(1)
        + interface(2, "i-1")
        + interface(3, "i-1", "detaching")
        + interface(4, "i-1", "detached")
        + interface(5, "", "of a service")
    )
    free, held, leaving, left, foreign = await calls.interfaces({"lakehead:cluster": "c"})
    assert (free.instance_id, left.instance_id) == ("", "")
    assert (held.instance_id, held.is_leaving) == ("i-1", False)
    assert (leaving.instance_id, leaving.is_leaving) == ("i-1", True)
    assert foreign.instance_id
    assert (free.zone, free.address) == ("eu-west-1a", "127.0.0.1")
    ec2.status, ec2.text = 503, ERROR.format("RequestLimitExceeded", "later")
    with pytest.raises(AwsUnanswered):
        await calls.attach("eni-1", "i-0", 1)
    ec2.status, ec2.text = 400, ERROR.format("InvalidNetworkInterface.InUse", "is in use")
    with pytest.raises(AwsRefused) as refused:
        await calls.attach("eni-1", "i-0", 1)
    assert refused.value.code == "InvalidNetworkInterface.InUse"


@pytest.mark.slow
async def test_the_calls_are_those_that_motos_ec2_understands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import boto3

    moto = pytest.importorskip("moto", reason="moto, an EC2 of others, is not installed")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with moto.mock_aws():
        client = boto3.Session().client("ec2", region_name="us-east-1")
        image = client.describe_images()["Images"][0]["ImageId"]
        started = client.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]
        tags = [{"Key": "lakehead:cluster", "Value": "c"}, {"Key": "lakehead:slot", "Value": "a-0"}]
        made = client.create_network_interface(
            SubnetId=started["SubnetId"],
            TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}],
        )["NetworkInterface"]
        calls = Boto3NetworkInterfaces("us-east-1")
        (found,) = await calls.interfaces({"lakehead:cluster": "c"})
        assert found.interface_id == made["NetworkInterfaceId"]
        assert (found.address, found.instance_id) == (made["PrivateIpAddress"], "")
        assert found.tags["lakehead:slot"] == "a-0"
        assert await calls.interfaces({"lakehead:cluster": "other"}) == []
        await calls.attach(found.interface_id, started["InstanceId"], 1)
        (found,) = await calls.interfaces({"lakehead:cluster": "c"})
        assert found.instance_id == started["InstanceId"]
        with pytest.raises(AwsRefused):
            await calls.attach("eni-00000000000000000", started["InstanceId"], 2)
