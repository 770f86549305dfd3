"""Errors of tasks: one line with the reason and the next step; without a retry where it cannot
help.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from lakehead.storage.jobs.job import IfTaken

_HOPELESS = frozenset(
    {
        "BadInput",
        "ConnectorFenced",
        "CorruptObject",
        "DamageFound",
        "HistoryOnlyInTable",
        "InputChanged",
        "InputLost",
        "RecordUnreadable",
        "SchemaConflict",
        "SettingsError",
        "StoreRefused",
        "UnknownTopic",
        "UnsupportedFormat",
    }
)
"""Errors that stay until the operator acts, and kinds of them, by name: their modules are heavy."""

_ADVICE = {
    "StoreRefused": "check the connection's storage settings and what they are allowed to do",
    "CorruptObject": "run the job verify: it names what is damaged and what to do",
    "UnknownTopic": "check the topic's name, or create it",
}
_MESSAGE_MAX = 2000


def checked_if_taken(value: str) -> IfTaken:
    """Return `if_taken` if it is valid. Raises ValueError, which Airflow shows as an
    import error.
    """
    for known in get_args(IfTaken):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"if_taken is {value!r}: use skip or retry")


def airflow_error(error: Exception, *, if_taken: IfTaken = "retry") -> AirflowException:
    """Return what a task is to raise for an error of Lakehead's."""
    kind = type(error).__name__
    text = " ".join(str(error).split())[:_MESSAGE_MAX] or kind
    if kind == "TableTaken":
        # The message ends with advice for a command line.
        text = text.partition(": wait for it")[0]
        if if_taken == "skip":
            return AirflowSkipException(f"{text}: left to it")
        return AirflowException(f"{text}: a later try may find it free (if_taken=skip leaves it)")
    if any(one.__name__ in _HOPELESS for one in type(error).__mro__):
        advice = _ADVICE.get(kind)
        return AirflowFailException(f"{text}: {advice}" if advice else text)
    return AirflowException(f"{text}: completed work is kept, and a retry resumes")


@contextmanager
def airflow_errors(*, if_taken: IfTaken = "retry") -> Iterator[None]:
    """Turn errors of Lakehead's into Airflow's, without a traceback of ours around them."""
    from lakehead.storage.errors import LakeheadError

    try:
        yield
    except LakeheadError as error:
        raise airflow_error(error, if_taken=if_taken) from None
    except ModuleNotFoundError as error:
        raise AirflowFailException(
            f"{error.name} is not installed on this worker; get it with: pip install "
            "'lakehead[airflow,lake]'"
        ) from None
