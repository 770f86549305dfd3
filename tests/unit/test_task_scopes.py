"""Tasks that end the node by an unexpected error are a list in the docs; others end alone."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.storage import tasks
from lakehead.storage.tasks import TaskScope

ROOT = Path(__file__).parents[2]
OTHER_PROCESSES = {"broker/supervisor", "storage/object_store/s3/check.py", "broker/testing"}
"""Scopes that are not a node's: the supervisor's, a command's, a helper of tests."""


def fatal_tasks() -> Iterator[tuple[str, str]]:
    """Yield file and name of each task that `TaskScope.spawn` makes and nothing awaits."""
    for path in (*ROOT.glob("broker/**/*.py"), *ROOT.glob("storage/**/*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place == "storage/tasks.py" or any(place.startswith(one) for one in OTHER_PROCESSES):
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            given = {one.arg: one.value for one in call.keywords}
            if call.func.attr == "spawn" and "name" in given and "is_awaited" not in given:
                name = given["name"]
                if isinstance(name, ast.JoinedStr):
                    name = name.values[0]
                assert isinstance(name, ast.Constant), f"{place}:{call.lineno}"
                yield place, str(name.value).strip()


def test_each_task_that_ends_a_node_is_in_the_list_of_the_docs() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    section = text.split("## Reasons for a node's end")[1].split("## ")[0]
    found = list(fatal_tasks())
    assert len(found) >= 6
    assert [one for one in found if f"`{one[1]}`" not in section] == []
    listed = {line.split("|")[1] for line in section.splitlines() if line.startswith("| ")}
    named = {name for cell in listed for name in cell.split("`")[1::2]}
    assert named == {name for _, name in found}


class Scope:
    """A scope that notes what it hears."""

    def __init__(self) -> None:
        self.crashes: list[str] = []
        self.failures: list[str] = []
        self.tasks = TaskScope(
            lambda name, error: self.crashes.append(name),
            on_failure=lambda name, error: self.failures.append(f"{name}: {error}"),
        )


async def fails() -> None:
    raise ZeroDivisionError("by zero")


async def test_an_unexpected_error_ends_a_task_apart_alone() -> None:
    scope, errors = Scope(), list[Exception]()
    tasks_ = [
        scope.tasks.spawn_apart(fails(), name="one"),
        scope.tasks.spawn_apart(fails(), name="request", on_error=errors.append),
    ]
    await asyncio.wait(tasks_)
    await asyncio.sleep(0)
    assert (scope.crashes, scope.failures) == ([], ["one: by zero"])
    assert [str(error) for error in errors] == ["by zero"]
    await asyncio.wait([scope.tasks.spawn(fails(), name="fatal")])
    await asyncio.sleep(0)
    assert scope.crashes == ["fatal"]
    await scope.tasks.close()


async def test_a_duty_goes_on_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LOOP_PAUSE_S", 0.0)
    scope, turns = Scope(), list[int]()

    async def run() -> None:
        turns.append(1)
        if len(turns) < 3:
            await fails()

    await scope.tasks.spawn_loop(run, name="duty")
    assert (len(turns), scope.crashes) == (3, [])
    assert scope.failures == ["duty: by zero"] * 2
    await scope.tasks.close()


async def waits_for_what_is_given_up() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_a_task_is_not_lost_by_the_cancellation_of_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the node would go on without it, as it does without one that its owner has cancelled."""
    monkeypatch.setattr(tasks, "LOOP_PAUSE_S", 0.0)
    scope, errors, turns = Scope(), list[Exception](), list[int]()

    async def run() -> None:
        turns.append(1)
        if len(turns) < 3:
            await waits_for_what_is_given_up()

    await asyncio.wait(
        [
            scope.tasks.spawn(waits_for_what_is_given_up(), name="fatal"),
            scope.tasks.spawn_apart(waits_for_what_is_given_up(), name="one"),
            scope.tasks.spawn_apart(
                waits_for_what_is_given_up(), name="request", on_error=errors.append
            ),
            scope.tasks.spawn_loop(run, name="duty"),
        ]
    )
    await asyncio.sleep(0)
    assert scope.crashes == ["fatal"]
    failed = "waited for a future that was cancelled"
    assert sorted(scope.failures) == [f"{one}: {one} {failed}" for one in ("duty", "duty", "one")]
    assert [str(error) for error in errors] == [f"request {failed}"]


async def test_a_task_that_is_cancelled_by_its_owner_is_no_failure() -> None:
    scope = Scope()
    begun = [
        scope.tasks.spawn(asyncio.sleep(60), name="fatal"),
        scope.tasks.spawn_apart(asyncio.sleep(60), name="one"),
        scope.tasks.spawn_loop(lambda: asyncio.sleep(60), name="duty"),
    ]
    begun[0].cancel()
    await asyncio.sleep(0)
    begun[1].cancel()
    await asyncio.sleep(0)
    await scope.tasks.close()
    assert [task.cancelled() for task in begun] == [True] * 3
    assert (scope.crashes, scope.failures) == ([], [])
