"""A task that is asked to end gets out of whatever it does."""

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest

from lakehead.connectors.airflow.operators.base import Cancellation, Cancelled


def in_a_callback(cancel: Callable[[], None]) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(cancel)
        await asyncio.Event().wait()

    asyncio.run(work())


def in_a_signal_handler(cancel: Callable[[], None]) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGUSR1)
        await asyncio.Event().wait()

    before = signal.signal(signal.SIGUSR1, lambda *_: cancel())
    try:
        asyncio.run(work())
    finally:
        signal.signal(signal.SIGUSR1, before)


def while_it_waits_for_a_thread(cancel: Callable[[], None]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: cancel())
    main = threading.main_thread().ident
    assert main is not None
    try:
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        threading.Event().wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("work", [in_a_callback, in_a_signal_handler, while_it_waits_for_a_thread])
@pytest.mark.timeout(30)
def test_work_ends_wherever_it_is_asked_to(work: Callable[[Callable[[], None]], None]) -> None:
    cancellation = Cancellation()
    with pytest.raises(Cancelled), cancellation.breaks_in():
        work(cancellation.cancel)


def test_what_was_asked_before_or_after_the_work_does_not_break_in_twice() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(Cancelled), cancellation.breaks_in():
        raise AssertionError("the work began")
    cancellation.cancel()
