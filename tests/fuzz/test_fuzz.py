"""Readers of bytes: no crash, no hang, no memory beyond the input. Inputs that were faults stay so
no more.
"""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import fuzz_campaign
from tests.fuzz.fuzz_campaign import problem_of, run
from tests.fuzz.targets import TARGETS, Target
from tests.support.repetitions import repetitions

pytestmark = pytest.mark.filterwarnings("ignore")  # about weak keys, which inputs have
FOUND = sorted((Path(__file__).parent.parent / "fixtures" / "fuzz").glob("*.bin"))
SLOW_ONES = {"volumes": 20, "frames": 5, "key-sets": 5}


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_takes_any_bytes(name: str) -> None:
    count = repetitions(2000, 500) // SLOW_ONES.get(name, 1)
    done = run(name, 1, goes_on=lambda tried: tried < count)
    assert done.fault is None, done.fault
    assert 0 < done.valid <= done.tried == count


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.name)
def test_an_input_that_was_a_fault_is_none_any_more(file: Path) -> None:
    name = file.name.rpartition("-")[0]
    problem_of(name, b"")
    assert problem_of(name, file.read_bytes())[0] == ""


def _loops(_data: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda data: bytearray(1 << 26), "bytes allocated for an input of 3"),
        (lambda data: data[100], "IndexError"),
        (_loops, "of processor time"),
    ],
)
def test_a_fault_is_noticed(read: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(read=read, seeds=lambda: [b"abc"], errors=(ValueError,))  # type: ignore[arg-type]
    monkeypatch.setitem(TARGETS, "faulty", target)
    monkeypatch.setattr(fuzz_campaign, "CPU_S_MAX", 0.2)
    assert words in problem_of("faulty", b"abc")[0]
