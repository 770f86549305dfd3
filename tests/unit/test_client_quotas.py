"""Quotas of many clients: what is kept of each is bounded, and found again by name."""

import asyncio
import random
import tracemalloc

import pytest
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.quota import client_quotas
from lakehead.broker.quota.client_quotas import ClientQuota, ClientQuotas
from lakehead.broker.quota.connection_rates import ConnectionRates, normal_address
from lakehead.broker.quota.entities import Quotas
from lakehead.broker.quota.rates import QuotaWindow
from lakehead.broker.quota.request_quota import RequestQuota
from lakehead.broker.quota.sensors import IDLE_S, SENSORS_MAX, Sensors
from lakehead.broker.quota.throttles import Throttles

PER_CLIENT: Quotas = Map({(("client-id", None),): Map({"producer_byte_rate": 1000.0})})


SENSORS_HERE = 500


class SteppedClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Cluster:
    """Quotas that a test changes."""

    def __init__(self, quotas: Quotas = PER_CLIENT) -> None:
        self.clock = SteppedClock()
        self.now: Quotas = quotas
        self.quotas = ClientQuotas(
            lambda: self.now,
            self.clock,
            QuotaWindow(),
            QuotaWindow(),
            Throttles(),
            sensors_max=SENSORS_HERE,
        )

    def client(self, client_id: str | None, user: str = "ANONYMOUS") -> ClientQuota:
        found = self.quotas.of(user, client_id)
        assert found is not None
        return found


def test_without_quotas_there_is_nothing_to_do() -> None:
    cluster = Cluster(Map())
    assert cluster.quotas.of("ANONYMOUS", "app") is None


def test_a_client_that_no_quota_names_has_none() -> None:
    cluster = Cluster(Map({(("client-id", "app"),): Map({"producer_byte_rate": 1.0})}))
    assert cluster.quotas.of("ANONYMOUS", "other") is None
    assert cluster.quotas.of("ANONYMOUS", None) is None
    assert cluster.quotas.of("ANONYMOUS", "app") is not None


def test_connections_of_one_client_share_its_limit_and_others_do_not() -> None:
    cluster = Cluster()
    assert cluster.client("app").produced(10_000) == 0
    assert cluster.client("app").produced(10_000) == 10.0
    assert cluster.client("other").produced(10_000) == 0


def test_users_share_no_default_limit() -> None:
    cluster = Cluster(Map({(("user", None),): Map({"producer_byte_rate": 1000.0})}))
    assert cluster.client("a", "ann").produced(20_000) == 10.0
    assert cluster.client("b", "ann").produced(1) > 0
    assert cluster.client("a", "bob").produced(1) == 0


def test_a_changed_quota_counts_at_once_with_what_was_measured() -> None:
    cluster = Cluster()
    assert cluster.client("app").produced(10_000) == 0
    cluster.now = Map({(("client-id", "app"),): Map({"producer_byte_rate": 500.0})})
    assert cluster.client("app").produced(0) == 10.0
    cluster.now = Map()
    assert cluster.quotas.of("ANONYMOUS", "app") is None


def test_a_flood_of_client_ids_stays_within_memory() -> None:
    cluster = Cluster()
    rng = random.Random(1)
    tracemalloc.start()
    try:
        for number in range(2 * SENSORS_HERE):
            cluster.clock.seconds += 0.001
            name = f"{number}-" + "x" * rng.choice([8, 100, 5000])
            cluster.client(name).produced(100)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cluster.quotas.sensors["producer_byte_rate"] == SENSORS_HERE
    # 20 MB at the most that are kept, by default.
    assert used < SENSORS_HERE * (20 << 20) // SENSORS_MAX


def test_a_busy_client_is_measured_on_through_a_flood_of_others() -> None:
    cluster = Cluster()
    for number in range(2 * SENSORS_HERE):
        cluster.client(f"{number}").produced(1)
        if not number % 50:
            cluster.client("busy").produced(1000)
    assert cluster.client("busy").produced(0) > 0


def test_long_names_that_differ_share_no_rate() -> None:
    cluster = Cluster()
    begin = "x" * 30_000
    assert cluster.client(begin + "1").produced(20_000) == 10.0
    assert cluster.client(begin + "2").produced(1) == 0
    assert cluster.client(begin + "1").produced(0) > 0


def test_idle_rates_are_forgotten_after_an_hour() -> None:
    sensors = Sensors(list[int])
    for number in range(100):
        sensors.get(number, 0.0)
    for number in range(60):
        sensors.get(("new", number), IDLE_S)
    assert len(sensors) == 60


def test_clients_that_are_looked_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "CLIENTS_MAX", 10)
    cluster = Cluster()
    first = cluster.client("app")
    assert cluster.client("app") is first
    for number in range(30):
        cluster.client(f"{number}")
    assert cluster.client("app").produced(20_000) == 10.0


def test_a_strict_mutation_quota_refuses_until_its_debt_is_paid() -> None:
    cluster = Cluster(Map({(("user", "ann"),): Map({"controller_mutation_rate": 2.0})}))
    quota = cluster.client("app", "ann").mutations(is_strict=True)
    quota.record(32)  # ten more than the bucket has
    assert quota.throttle_s() == 0
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            quota.record(1)
        assert refusal.value.code is ErrorCode.throttling_quota_exceeded
    assert quota.throttle_s() == 5.0
    cluster.clock.seconds += 3  # the response may come later than the refusal
    assert quota.throttle_s() == 2.0
    cluster.clock.seconds += 2
    cluster.client("other", "ann").mutations(is_strict=True).record(1)


def test_a_permissive_mutation_quota_refuses_nothing_and_throttles() -> None:
    cluster = Cluster(Map({(("user", "ann"),): Map({"controller_mutation_rate": 2.0})}))
    quota = cluster.client("app", "ann").mutations(is_strict=False)
    quota.record(22)
    assert quota.throttle_s() == 0
    quota.record(4)
    assert quota.throttle_s() == 2.0


def test_the_time_of_a_request_counts_up_to_its_response_and_after() -> None:
    cluster = Cluster(Map({(("user", "ann"),): Map({"request_percentage": 1.0})}))
    client, muted = cluster.client("app", "ann"), list[float]()
    request = RequestQuota(client, muted.append)
    with request:
        cluster.clock.seconds += 0.05
        with request:
            cluster.clock.seconds += 0.05
        assert request.finish() == 0  # 10 percent seconds in 10 s
        cluster.clock.seconds += 0.02
    following = RequestQuota(client, muted.append)
    assert following.finish() > 0
    assert muted
    assert muted[0] == pytest.approx(2.0, abs=0.2) or muted[0] == 1.0


async def test_the_time_in_which_a_request_waits_does_not_count() -> None:
    cluster = Cluster(Map({(("user", "ann"),): Map({"request_percentage": 1.0})}))
    client, muted = cluster.client("app", "ann"), list[float]()
    request = RequestQuota(client, muted.append)

    async def work() -> str:
        cluster.clock.seconds += 0.01
        await asyncio.sleep(0)
        cluster.clock.seconds += 0.01
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        return "done"

    async def clock_runs_on() -> None:
        cluster.clock.seconds += 500

    other = asyncio.ensure_future(clock_runs_on())
    assert await request.steps_of(work()) == "done"
    await other
    assert request.finish() == 0
    assert client.request_took(0.0799) == 0
    assert client.request_took(0.01) > 0


@pytest.mark.parametrize("text", ["::ffff:10.0.0.1", "10.0.0.1"])
def test_an_ipv4_address_is_one_address(text: str) -> None:
    assert normal_address(text) == "10.0.0.1"
    assert normal_address("0:0:0:0:0:0:0:1") == normal_address("::1") == "::1"


def test_addresses_have_a_rate_each_and_the_default_counts_for_others() -> None:
    clock, throttles = SteppedClock(), Throttles()
    quotas: Quotas = Map(
        {
            (("ip", "10.0.0.1"),): Map({"connection_creation_rate": 2.0}),
            (("ip", None),): Map({"connection_creation_rate": 1.0}),
        }
    )
    rates = ConnectionRates(lambda: quotas, clock, QuotaWindow(), throttles)
    own = [rates.opened("::ffff:10.0.0.1") for _ in range(25)]
    assert own[:20] == [0.0] * 20
    assert all(0 < seconds <= 1 for seconds in own[20:])
    other = [rates.opened("10.0.0.2") for _ in range(12)]
    assert other.count(0.0) == 10
    assert rates.opened("10.0.0.3") == 0
    clock.seconds += 12
    assert rates.opened("10.0.0.1") == 0
    assert throttles.levels_total == {"ip": 5, "default ip": 2}
