"""The jobs of tables as operators of their own, with parameters in place of options.

The parameters are the options that a job declares (docs/jobs.md lists them), each a template.
"""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from lakehead.connectors.airflow.jobs import job_named
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator
from lakehead.storage.jobs.options import options_of


def parameters_of(job: str, **defaults: Any) -> Callable[..., None]:
    """Return the `__init__` of an operator of a job, with a parameter for each of its options.

    Options without a value are the job's defaults, or these `defaults`. If a job takes `topics`,
    `topic` is one of them.
    """
    options = [one for one in options_of(job_named(job).options) if not one.info.is_of_command]
    names = [one.name for one in options]

    def __init__(self: LakeheadJobOperator, **kwargs: Any) -> None:  # noqa: N807 - it becomes one
        given = defaults | {name: kwargs.pop(name) for name in names if name in kwargs}
        if "topics" in names and (topic := kwargs.pop("topic", None)):
            given["topics"] = topic
        LakeheadJobOperator.__init__(self, job=job, options=given, **kwargs)

    shown = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    if "topics" in names:
        shown.append(Parameter("topic", Parameter.KEYWORD_ONLY, default=None))
    for one in options:
        is_required = one.info.form.get("required", False)
        default = Parameter.empty if is_required else defaults.get(one.name, one.default)
        shown.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default))
    shown.append(Parameter("kwargs", Parameter.VAR_KEYWORD))
    # Airflow looks for missing arguments, and for those of default_args, by the signature.
    __init__.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    return __init__


class LakeheadMaterializeOperator(LakeheadJobOperator):
    """Adds the records that lie in objects now to declared tables.

    :param topic: the topic (or ``topics``) whose tables these are; without any, all. (templated)
    """

    __init__ = parameters_of("materialize")


class LakeheadOptimizeOperator(LakeheadJobOperator):
    """Makes big files of tables' small ones (OPTIMIZE), and puts rows in order.

    :param topic: see LakeheadMaterializeOperator. (templated)
    """

    __init__ = parameters_of("optimize")


class LakeheadVacuumOperator(LakeheadJobOperator):
    """Deletes files that no version of a table needs any more (VACUUM).

    :param topic: see LakeheadMaterializeOperator. (templated)
    """

    __init__ = parameters_of("vacuum")


class LakeheadReplayOperator(LakeheadJobOperator):
    """Brings dead letters that can be rows now into the table of a topic."""

    __init__ = parameters_of("replay")


class LakeheadBackfillOperator(LakeheadJobOperator):
    """Has the table of a topic begin earlier, and adds what lies before its beginning."""

    __init__ = parameters_of("backfill", begin="earliest")


class LakeheadRebuildTableOperator(LakeheadJobOperator):
    """Rebuilds the table of a topic by its present declaration, and swaps it in."""

    __init__ = parameters_of("rebuild_table")
