"""Files into a topic by real processes: each line is there once, whatever is killed."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.pipelines import Intake
from lakehead.connectors.runtime.errors import BadInput, ConnectorFenced, KafkaFailed
from lakehead.connectors.runtime.interfaces import (
    Batch,
    ConnectResult,
    Position,
    Positions,
    Source,
    Work,
)
from lakehead.connectors.runtime.settings import load_settings
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.settings import ConnectorSettings, FilesSettings
from lakehead.connectors.sources.files.source import FilesSource
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import StoreRefused, StoreUnavailable
from lakehead.storage.failpoints import KILLED
from tests.support.broker_process import BrokerProcess
from tests.support.connect_runs import ConnectFile, committed, values
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("connectors")  # they share a broker


def connector(
    broker: BrokerProcess, folder: Path, name: str, source: str, sink: str
) -> ConnectFile:
    text = f"""
        name = "{name}"
        [kafka]
        bootstrap.servers = "{broker.bootstrap}"
        [source]
        type = "files"
        path = "{folder}"
        {source}
        [sink]
        type = "topic"
        topic = "{name}"
        partitions = 3
        {sink}
        [run]
        transaction_bytes = 40_000
        poll_seconds = 0.1
        """
    return ConnectFile(folder.parent / f"{name}.toml", text)


def test_each_line_is_there_once_over_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    expected = []
    for part in range(3):
        lines = [json.dumps({"id": part * 3000 + n, "pad": "x" * 10}) for n in range(3000)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
        expected += [line.encode() for line in lines]
    file = connector(broker, folder, "kills", 'key = ["id"]', "")
    status, text = file.run(failpoint="connect_transaction_written:3")
    assert status == KILLED, text
    plan = file.opened().plan()
    assert 0 < sum(work.size_bytes for work in plan.works) < sum(map(len, expected))
    result = file.opened().run()
    assert 0 < result.records < 9000
    found = committed(broker.bootstrap, "kills")
    assert sorted(message.value() or b"" for message in found) == sorted(expected)
    assert {message.partition() for message in found} == {0, 1, 2}
    for message in found[:100]:
        assert message.key() == str(json.loads(message.value() or b"")["id"]).encode()
    positions = file.opened().positions()
    assert [position["done"] for position in positions.values()] == [True] * 3
    assert file.opened().run().records == 0


def test_a_second_run_fences_the_first_and_goes_on(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.jsonl").write_text("1\n")
    file = connector(broker, folder, "fenced", "", "")
    first, second = file.opened(), file.opened()
    with ThreadPoolExecutor(2) as threads:
        former = threads.submit(first.run, follow=True)
        number = 1
        try:
            assert wait_until(lambda: former.done() or _has(broker, file, 1), 60)
            latter = threads.submit(second.run, follow=True)
            while not former.done():  # it may read some more until the second has started
                number += 1
                (folder / f"{number}.jsonl").write_text(f"{number}\n")
                assert wait_until(partial(_has, broker, file, number), 60)
            number += 1
            (folder / f"{number}.jsonl").write_text(f"{number}\n")
            assert wait_until(partial(_has, broker, file, number), 60)
        finally:
            first.stop()
            second.stop()
        with pytest.raises(ConnectorFenced, match="another run of connector fenced has started"):
            former.result()
        assert latter.result().records >= 1
    found = sorted(map(int, values(broker.bootstrap, "fenced")))
    assert found == list(range(1, number + 1))


def _has(broker: BrokerProcess, file: ConnectFile, number: int) -> bool:
    return any(name.endswith(f'/{number}.jsonl"}}') for name in file.opened().positions())


def test_broken_lines_go_to_a_topic_of_their_own(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [f'{n},"text, of\n{n}"' for n in range(500)]
    rows[100] = "100,too,many"
    rows[200] = '200,"never closed'
    rows[300] = "x,no number"
    path = folder / "a.csv"
    path.write_text("id,text\n" + "\n".join(rows[:200]) + "\n" + rows[300] + "\n")
    (folder / "large.csv").write_text(f"id,text\n7000,{'x' * 1_048_000}\n")
    (folder / "b.csv").write_text("id,text\n1000,ok\n" + rows[200] + "\n" + "1001,ok\n")
    types = '[source.types]\nid = "integer"'
    failing = connector(broker, folder, "letters", types, "")
    with pytest.raises(BadInput, match=r"a\.csv, line 202: 3 fields where there are 2 columns"):
        failing.opened().run()
    file = connector(broker, folder, "letters", types, 'on_error = "dead_letter"')
    result = file.opened().run()
    assert (result.records, result.dead_letters) == (201, 4)
    letters = committed(broker.bootstrap, "letters.dead-letters")
    places: list[Any] = [dict(letter.headers() or [])["lakehead.place"] for letter in letters]
    assert sorted(
        (place.decode().rpartition("/")[2], letter.value())
        for place, letter in zip(places, letters, strict=True)
    ) == [
        ("a.csv, line 202", b"100,too,many"),
        ("a.csv, line 401", b"x,no number"),
        ("b.csv, line 3", b'200,"never closed'),
        ("large.csv, line 2", b'{"id":7000,"text":"' + b"x" * (64 * 1024 - 19)),
    ]
    assert sorted(json.loads(one)["id"] for one in values(broker.bootstrap, "letters")) == [
        *(n for n in range(200) if n != 100),
        1000,
        1001,
    ]


def test_what_cannot_be_reached_is_one_line(tmp_path: Path, broker: BrokerProcess) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text("1\n")
    file = connector(broker, folder, "absent", "", "")
    file.path.write_text(file.path.read_text().replace("partitions = 3", ""))
    with pytest.raises(KafkaFailed, match=r"there is no topic absent at .*topics create absent"):
        file.opened().run()


class Flaky:
    """A source whose store fails now and then in the middle."""

    def __init__(self, inner: Source, errors: list[Exception]) -> None:
        self._inner = inner
        self._errors = errors

    def work(self, positions: Positions) -> Sequence[Work]:
        return self._inner.work(positions)

    def read(self, work: Work, position: Position | None) -> Iterator[Batch]:
        for batch in self._inner.read(work, position):
            yield batch
            if self._errors:
                raise self._errors.pop()

    def close(self) -> None:
        self._inner.close()


@pytest.mark.slow
def test_a_store_that_fails_is_asked_again_unless_it_refuses(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(f"{n}\n" for n in range(5000)))
    file = connector(broker, folder, "flaky", "", "")
    settings = load_settings(file.path, ConnectorSettings)
    assert isinstance(settings.source, FilesSettings)
    clock = SystemClock()
    stop = Stop(clock, within_s=10)
    files = FilesSource(settings.source, clock, stop.wait)

    def run(*errors: Exception) -> ConnectResult:
        source = Flaky(files, list(errors))
        intake = Intake(settings, source, {"bootstrap.servers": broker.bootstrap}, clock)
        return intake.run(follow=False, stop=stop, on_progress=lambda _: None)

    with pytest.raises(StoreRefused, match="403"):
        run(StoreRefused("403"))
    result = run(StoreUnavailable("503"), StoreUnavailable("503"))
    assert result.aborted == 2
    assert values_as_numbers(broker, "flaky") == list(range(5000))


def values_as_numbers(broker: BrokerProcess, topic: str) -> list[int]:
    return sorted(map(int, values(broker.bootstrap, topic)))
