"""Fault plans, and the figures and reports of runs."""

import html.parser
import itertools

import pytest

from tests.checker import report
from tests.checker.fault_plan import HOW_MANY, plan
from tests.checker.figures import figures
from tests.checker.history import History, Sent, value_of
from tests.checker.nemesis import Event

KINDS = {0: ("killed", "paused"), 1: ("killed", "paused"), 2: ("killed",), -1: ("slow",)}
SECONDS = 600.0


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_its_bounds(seed: int) -> None:
    faults = plan(seed, SECONDS, KINDS)
    assert faults == plan(seed, SECONDS, KINDS)
    assert [f.begins for f in faults] == sorted(f.begins for f in faults)
    for fault in faults:
        assert 0 <= fault.begins < fault.ends < SECONDS
        assert fault.kind in KINDS[fault.node]
    for target in KINDS:
        own = [f for f in faults if f.node == target]
        assert all(a.ends <= b.begins for a, b in itertools.pairwise(own))
        assert own, "a target that nothing happens to"


def test_plans_have_quiet_times_and_several_faults_at_once() -> None:
    at_once = [0] * (len(HOW_MANY) + 1)
    for seed in range(20):
        faults = plan(seed, SECONDS, KINDS)
        for second in range(int(SECONDS)):
            at_once[sum(f.begins <= second < f.ends for f in faults)] += 1
    assert all(at_once)
    assert plan(1, SECONDS, KINDS) != plan(2, SECONDS, KINDS)


def test_a_target_without_faults_has_none() -> None:
    assert all(f.node != -1 for f in plan(1, SECONDS, KINDS | {-1: ()}))


def history_with_a_pause() -> History:
    """Two partitions, ten records a second each for 20 s; the second is silent for 3 s."""
    now, history = 100.0, History(clock=lambda: now)
    history.record_assign("reader", {0: 0, 1: 0})
    for number in range(400):
        now = 100.0 + number * 0.05
        sent, partition = Sent("p", number), number % 2
        if partition and 108.0 < now < 111.0:
            continue
        history.record_sent(sent, partition)
        now += 0.01
        history.record_acknowledged(sent, partition, number // 2)
        now += 0.2
        history.record_poll("reader", [(partition, number // 2, value_of(sent, 50))])
    history.record_sent(Sent("p", 400), 0)
    history.record_unclear(Sent("p", 400), "<timed out>")
    return history


def test_figures_are_those_of_the_history() -> None:
    found = figures(history_with_a_pause(), began=100.0, ended=120.0)
    assert found.outcomes == {"ok": 370, "info": 1}
    assert found.reasons == {"<timed out>": 1}
    [gap] = found.gaps
    assert gap.partition == 1
    assert gap.seconds == pytest.approx(3.1, abs=0.2)
    assert found.delay_p50 == pytest.approx(0.01)
    assert found.lag_max == pytest.approx(0.2)
    assert sum(found.acknowledged) / 2 == 370


class Page(html.parser.HTMLParser):
    """Counts elements, and sees that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def a_run(anomalies: list[str]) -> report.Run:
    events = [
        Event(target="node 1", kind="paused", begun=108.0, ended=111.0),
        Event(target="store", kind="slow <very>", begun=103.0, ended=104.0),
    ]
    found = figures(history_with_a_pause(), began=100.0, ended=120.0)
    return report.Run(
        title="a run & its <end>",
        began=100.0,
        figures=found,
        events=events,
        anomalies=anomalies,
        notes=["no clocks"],
    )


def test_the_page_is_whole_and_shows_faults_and_pauses() -> None:
    page = Page()
    text = report.page(a_run([]))
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.count["rect"] == 3
    assert page.count["polygon"] == 1
    assert "No anomaly." in text
    assert "slow &lt;very&gt;" in text
    assert "<end>" not in text


def test_anomalies_are_told_first() -> None:
    anomalies = [f"lost: {number}" for number in range(60)]
    for text in (report.text(a_run(anomalies)), report.page(a_run(anomalies))):
        assert "60 ANOMALIES" in text
        assert "lost: 49" in text
        assert "lost: 50" not in text
        assert "10 more" in text
        assert "No anomaly." not in text
