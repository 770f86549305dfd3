"""EC2's metadata service as it is asked: tokens, tags, notices, and silence."""

import socket
from collections.abc import Iterator

import pytest

from lakehead.broker.ec2.notices import InstanceEvents, Notice
from lakehead.storage.aws.instance import Instance, InstanceMetadata, MetadataUnanswered
from lakehead.storage.errors import SettingsError
from tests.support.fake_imds import FakeImds, serve_imds


@pytest.fixture
def imds() -> Iterator[FakeImds]:
    with serve_imds() as served:
        yield served


async def test_an_instance_is_told_who_it_is(imds: FakeImds) -> None:
    imds.tag(cluster="c", slot="a-0")
    instance = await InstanceMetadata(imds.endpoint).instance()
    assert instance == Instance(
        instance_id="i-0a",
        region="eu-west-1",
        zone="eu-west-1a",
        zone_id="euw1-az2",
        tags={"lakehead:cluster": "c", "lakehead:slot": "a-0"},
    )
    assert imds.tokens_given == 1


async def test_tags_that_are_not_shown_are_none(imds: FakeImds) -> None:
    instance = await InstanceMetadata(imds.endpoint).instance()
    assert instance.tags is None


async def test_a_token_that_has_run_out_is_asked_for_anew(imds: FakeImds) -> None:
    events = InstanceEvents(InstanceMetadata(imds.endpoint))
    assert await events.notice(takes_rebalance=True) is None
    imds.tokens.clear()
    imds.announce("terminate")
    assert await events.notice(takes_rebalance=True) == Notice(
        kind="interruption", action="terminate", when="2026-01-01T00:02:00Z"
    )
    assert imds.tokens_given == 2


async def test_a_recommendation_counts_if_asked_for_and_less_than_an_interruption(
    imds: FakeImds,
) -> None:
    events = InstanceEvents(InstanceMetadata(imds.endpoint))
    imds.recommend()
    assert await events.notice(takes_rebalance=False) is None
    told = await events.notice(takes_rebalance=True)
    assert told == Notice(kind="rebalance", action="", when="2026-01-01T00:00:00Z")
    imds.announce("stop")
    told = await events.notice(takes_rebalance=True)
    assert told is not None
    assert told.action == "stop"


async def test_a_group_that_ends_its_instance_counts_if_asked_for(imds: FakeImds) -> None:
    events = InstanceEvents(InstanceMetadata(imds.endpoint))
    assert await events.notice(takes_scaling=True) is None
    for state in ("InService", "Standby", "Detached"):
        imds.target(state)
        assert await events.notice(takes_scaling=True) is None
    imds.target("Terminated")
    assert await events.notice(takes_rebalance=True) is None
    ends = Notice(kind="scaling", action="terminate", when="")
    assert await events.notice(takes_scaling=True) == ends
    imds.announce("terminate")
    told = await events.notice(takes_scaling=True)
    assert told is not None
    assert told.kind == "interruption"  # two minutes, whatever the group says


async def test_outside_of_ec2_it_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match="this machine is not on EC2"):
            await InstanceMetadata(address).instance()


async def test_a_service_that_takes_connections_and_says_nothing_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        silent = InstanceEvents(InstanceMetadata(address, timeout_s=0.05))
        with pytest.raises(MetadataUnanswered, match="does not respond"):
            await silent.notice(takes_rebalance=True)


@pytest.mark.parametrize("text", ["", "no json", "[]", "{}"])
async def test_a_document_that_is_none_is_an_error(imds: FakeImds, text: str) -> None:
    imds.texts["dynamic/instance-identity/document"] = text
    with pytest.raises(SettingsError):
        await InstanceMetadata(imds.endpoint).instance()


async def test_trouble_of_the_service_is_not_the_absence_of_a_notice(imds: FakeImds) -> None:
    events = InstanceEvents(InstanceMetadata(imds.endpoint))
    imds.announce("terminate")
    imds.is_broken = True
    with pytest.raises(MetadataUnanswered):
        await events.notice(takes_rebalance=True)


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(SettingsError, match="not an http address"):
        InstanceMetadata("https://metadata")
