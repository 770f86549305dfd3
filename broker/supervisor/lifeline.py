"""A node's side of being supervised: it stops when its supervisor is gone.

Nodes without a supervisor would go on, unseen, and hold the ports that the next supervisor needs.
"""

import ctypes
import os
import signal
from collections.abc import Mapping

from lakehead.storage.errors import LakeheadError

SUPERVISOR = "LAKEHEAD_SUPERVISOR"
"""Environment: the process id of the supervisor."""
_PR_SET_PDEATHSIG = 1


class SupervisorGone(LakeheadError):
    """The supervisor ended before its node began."""


def is_supervised(environment: Mapping[str, str]) -> bool:
    """Return true if a supervisor started this process."""
    return SUPERVISOR in environment


def stop_with_supervisor(environment: Mapping[str, str]) -> None:
    """Have the kernel send SIGTERM to this process when the supervisor ends. Raises SupervisorGone,
    OSError.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(environment[SUPERVISOR]):  # it was gone before the call of the kernel
        raise SupervisorGone("the supervisor has ended")
