"""Groups of tasks: what is raised when some of them fail, on every release of Python."""

import asyncio

import pytest

from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import for_each, task_group


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


async def waits_for_what_is_given_up(_: int = 0) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_a_task_whose_wait_was_cancelled_fails_its_group() -> None:
    """asyncio's group would take it for ended, and wait for the others for ever."""
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(30), task_group() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(waits_for_what_is_given_up(), name="follow")
    assert [str(error) for error in caught.value.exceptions] == [
        "follow waited for a future that was cancelled"
    ]
    with pytest.raises(ExceptionGroup):
        await for_each(range(3), waits_for_what_is_given_up, at_once=2)


async def test_the_tasks_of_a_group_that_is_cancelled_are_no_failures() -> None:
    async def hold() -> None:
        async with task_group() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(asyncio.sleep(60))

    for turns in (0, 1, 3):  # before they have begun, and after
        holding = asyncio.ensure_future(hold())
        for _ in range(turns):
            await asyncio.sleep(0)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding


async def test_items_are_begun_in_order_so_many_at_a_time() -> None:
    begun: list[int] = []
    open_now, most = 0, 0

    async def work(item: int) -> None:
        nonlocal open_now, most
        begun.append(item)
        open_now += 1
        most = max(most, open_now)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        open_now -= 1

    await for_each(range(20), work, at_once=4)
    assert begun == list(range(20))
    assert most == 4
    await for_each([], work, at_once=4)
    assert len(begun) == 20


async def test_the_first_failed_item_ends_the_others() -> None:
    begun: list[int] = []

    async def work(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        if item == 1:
            raise Refused("this one")

    with pytest.raises(Refused, match="this one"):
        await for_each(range(100), work, at_once=2)
    assert len(begun) < 6
