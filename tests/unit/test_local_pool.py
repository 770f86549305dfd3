"""Work items in threads of this process."""

import threading

from lakehead.lake.jobs.local_pool import giving_turn, run_in_threads

SECONDS_MAX = 30


def test_another_item_is_worked_on_while_one_waits_for_a_store() -> None:
    third_began = threading.Event()

    def work(item: int) -> bool:
        if item == 2:
            third_began.set()
            return True
        with giving_turn():
            return third_began.wait(SECONDS_MAX)

    assert dict(run_in_threads(work, range(3), workers=2)) == {0: True, 1: True, 2: True}


def test_no_more_threads_work_than_workers() -> None:
    lock = threading.Lock()
    pair = threading.Barrier(2)
    now = most = 0

    def work(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        pair.wait(SECONDS_MAX)
        with lock:
            now -= 1
        with giving_turn():
            pass

    assert len(list(run_in_threads(work, range(8), workers=2))) == 8
    assert most == 2


def test_a_thread_of_no_pool_has_no_turn_to_give() -> None:
    with giving_turn():
        pass
    assert list(run_in_threads(str, [1], workers=2)) == [(1, "1")]
