"""What ends the wait for a coordinator's word: a batch or a marker of that transaction, and not the
marker of the one before it, which bears the same epoch since transaction version 2 (KIP-890).
"""

import pytest

from lakehead.broker.partition.verification import Verifications

PRODUCER, EPOCH = 7, 3


@pytest.mark.parametrize(
    ("is_adding", "marker_epoch", "is_ended"),
    [
        (True, EPOCH, False),
        (True, EPOCH - 1, False),
        (True, EPOCH + 1, True),
        (True, None, True),
        (False, EPOCH, True),
        (False, EPOCH + 1, True),
        (False, None, True),
    ],
)
def test_what_ends_a_verification(
    is_adding: bool, marker_epoch: int | None, is_ended: bool
) -> None:
    verifications = Verifications()
    waiting = verifications.begin(PRODUCER, EPOCH, 0, 1, is_adding=is_adding)
    verifications.end(PRODUCER + 1, None)
    assert verifications.get(PRODUCER) is waiting
    verifications.end(PRODUCER, marker_epoch)
    assert verifications.get(PRODUCER) is (None if is_ended else waiting)
