"""Groups of tasks: what is raised when some of them fail, on every release of Python."""

import asyncio

import pytest

from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import task_group


class Refused(LakeheadError):
    """What the tests of groups raise."""


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_group_of_tasks_fails_as_one_of_them_did(depth: int) -> None:
    async def fail(deeper: int) -> None:
        if not deeper:
            raise Refused("this one")
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(deeper - 1))

    with pytest.raises(Refused, match="this one"):
        async with task_group() as group:
            group.create_task(fail(depth - 1))


async def test_a_fault_of_a_group_is_not_hidden_by_an_error_of_ours() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        async with task_group() as group:
            group.create_task(fail(Refused("ours")))
            group.create_task(fail(KeyError("a fault")))
    assert {type(error) for error in caught.value.exceptions} == {Refused, KeyError}
