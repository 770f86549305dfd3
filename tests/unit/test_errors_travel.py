"""Errors of ours reach the job from its worker processes as what they are."""

import inspect
import pickle
from collections.abc import Iterator

import pytest

from lakehead.broker.partition.record_checks import RecordsRefused
from lakehead.lake.jobs.local_pool import run_items
from lakehead.storage.errors import CorruptObject, FeatureNotEnabled, LakeheadError


def kinds(of: type[LakeheadError] = LakeheadError) -> Iterator[type[LakeheadError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


def made(kind: type[LakeheadError]) -> LakeheadError:
    """An error of a class, by what its parameters are."""
    given = inspect.signature(kind.__init__).parameters.values()
    samples: dict[object, object] = {int: 7, tuple[tuple[int, str], ...]: ((7, "word"),)}
    arguments = [samples.get(one.annotation, "word") for one in given][1:]
    is_own = "__init__" in kind.__dict__
    return kind(*arguments) if is_own else kind("word")


def test_every_error_can_be_pickled() -> None:
    found = [made(kind) for kind in kinds()]
    assert {CorruptObject, FeatureNotEnabled, RecordsRefused} <= {type(error) for error in found}
    for error in found:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (
            type(error),
            str(error),
            error.__dict__,
        )


def broken(item: int) -> int:
    raise CorruptObject(f"data/{item}", 7, "its checksum is wrong")


def test_damage_that_a_worker_process_finds_is_the_run_s_error() -> None:
    with pytest.raises(CorruptObject, match="object data/1 is corrupt at byte 7"):
        list(run_items(broken, [1, 1], processes=2))
