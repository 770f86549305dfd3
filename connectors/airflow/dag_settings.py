"""Settings and parts that the DAGs of `dags/` share. A deployment changes them by the Variable
`lakehead_dags`, which is read when a DAG file is parsed; docs/airflow.md lists its keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from airflow.sdk import DAG, BaseOperator, Param, Variable

from lakehead.connectors.airflow.features import AIRFLOW, APPROVALS, DEADLINES
from lakehead.connectors.airflow.jobs import job_named
from lakehead.connectors.airflow.operators.approval import PlanDigestOperator
from lakehead.storage.jobs.options import Option, options_of

if AIRFLOW >= (3, 1):
    from airflow.providers.standard.operators.hitl import ApprovalOperator
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
if AIRFLOW >= (3, 2):
    from airflow.sdk.definitions.callback import AsyncCallback
elif AIRFLOW >= (3, 1):
    from airflow.sdk.definitions.deadline import AsyncCallback  # type: ignore[attr-defined]

VARIABLE = "lakehead_dags"
START = datetime(2026, 1, 1, tzinfo=UTC)
"""The schedules' beginning. None of it is caught up with."""

CONN_ID = Param(
    "lakehead_default",
    type="string",
    minLength=1,
    title="Connection",
    description="The connection of the cluster.",
)
DRY_RUN = Param(
    False,
    type="boolean",
    title="Dry run",
    description="Report the work that is due, and do nothing.",
)
RUNNER = {
    "runner": Param(
        "local",
        enum=["local", "spark", "connect"],
        title="Runner",
        description="Place of the work: in the task, on a Spark "
        "session of the task's own, or on a Spark Connect server.",
    ),
    "spark_master": Param(
        "local[2]",
        type="string",
        title="Spark master",
        description="Of the task's own session (spark).",
    ),
    "spark_remote": Param(
        "",
        type="string",
        title="Spark Connect server",
        description="sc://host:15002 (connect).",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForm:
    """A job's options in the form of a DAG: `params` by name, and `options`, the templates by which
    its operators get what was filled in.
    """

    params: Mapping[str, Param]
    options: Mapping[str, str]


def job_form(job: str, *, is_approved: bool = False) -> JobForm:
    """Return the form of a job, from the declaration of its options. If the work is approved first
    (`approval`), it has what an Airflow without approvals needs for that.
    """
    shown = [one for one in options_of(job_named(job).options) if one.info.in_form]
    by_digest = {"approved_plan": APPROVED_PLAN} if is_approved and not APPROVALS.is_there else {}
    return JobForm(
        params={one.name: _param(one) for one in shown} | by_digest,
        options={one.name: _template(one) for one in shown},
    )


_TYPES: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    tuple[str, ...]: {"type": "array", "items": {"type": "string"}},
}


def _param(one: Option) -> Param:
    info = one.info
    schema: dict[str, Any] = {"title": info.title, **_TYPES.get(one.plain_type, {})}
    if one.plain_type != one.type and "type" in schema:
        schema["type"] = ["null", schema["type"]]
    schema |= {
        name: bound
        for name, bound in (("minimum", info.least), ("maximum", info.most))
        if bound is not None
    }
    empty = list(one.default) if isinstance(one.default, tuple) else one.default
    filled = {"default": empty, "description": info.help, **schema, **info.form}
    default = filled.pop("default")
    return Param(**filled) if filled.pop("required", False) else Param(default, **filled)


def _template(one: Option) -> str:
    """Return the template of an option. One that was left empty is an empty text."""
    param = f"params['{one.name}']"  # params.keys would be the method of a mapping
    if one.plain_type == tuple[str, ...]:
        form = "join(' ')" if one.info.parse is None else "tojson"
        return f"{{{{ {param} | {form} }}}}"
    if one.info.form.get("default", one.default) is None:
        return f"{{{{ '' if {param} is none else {param} }}}}"
    return f"{{{{ {param} }}}}"


CLUSTER: dict[str, Any] = {"lakehead_conn_id": "{{ params.conn_id }}"}
"""The argument of operators for the parameter `CONN_ID`, which every DAG has."""
ON_RUNNER: dict[str, Any] = {name: f"{{{{ params.{name} }}}}" for name in RUNNER}
"""The argument of operators for the parameter `RUNNER`."""

_PLANNED = """\
The dry run says:

{% for name, value in (ti.xcom_pull(task_ids='plan') or {}).items() %}
- {{ name | replace('_', ' ') }}: {{ value }}
{%- endfor %}
"""
_CALLBACK = "lakehead.connectors.airflow.deadlines.log_missed_deadline"


class DagSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The Variable. By DAG: `schedules` (cron, a preset, or null: by hand only), `params` (defaults
    of the parameters), `deadline_minutes` (null: none). Of all DAGs: connection, pool of the tasks
    that work, owner, tags beside their own, tries after the first and their pause, and the callback
    of a missed deadline.
    """

    schedules: dict[str, str | None] = {}
    params: dict[str, dict[str, Any]] = {}
    deadline_minutes: dict[str, int | None] = {}
    deadline_callback: str = _CALLBACK
    conn_id: str = "lakehead_default"
    pool: str = "default_pool"
    owner: str = "lakehead"
    tags: tuple[str, ...] = ()
    retries: int = 2
    retry_delay_s: int = 30

    @classmethod
    def read(cls) -> "DagSettings":
        """Return what the Variable says. Raises ValueError, which Airflow shows as an import error
        of the DAG.
        """
        text = _variable()
        if not text:
            return cls()
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"Variable {VARIABLE}: {error}") from None

    def params_of(self, dag_id: str, params: Mapping[str, Param]) -> dict[str, Param]:
        """Return the params of a DAG with the defaults of the Variable. Raises ValueError."""
        found = dict(params)
        for name, value in self.params.get(dag_id, {}).items():
            if name not in params:
                known = ", ".join(params) or "none"
                raise ValueError(
                    f"Variable {VARIABLE}: {dag_id} has no param {name!r}: there are {known}"
                )
            old = params[name]
            found[name] = Param(value, description=old.description, **old.schema)
        return found


APPROVED_PLAN = Param(
    "",
    type="string",
    title="Approved plan",
    description="Approve the plan of this digest, which an earlier run's `approve` has logged. "
    "Left out: plan only.",
)


def _variable() -> Any:
    try:
        return Variable.get(VARIABLE, default=None)
    except ImportError:
        # Airflow 3.0, where a file is parsed by a command line such as `airflow dags list`.
        from airflow.models.variable import Variable as StoredVariable

        return StoredVariable.get(VARIABLE, default_var=None)


class LakeheadDag(DAG):
    """A DAG that can be tried by `airflow dags test` though its runs have a deadline."""

    def test(self, *args: Any, **kwargs: Any) -> Any:
        """Run the DAG as `DAG.test` does, without a deadline: at the end of a run, Airflow 3.3
        takes the encoded alerts of a DAG that is tried for ids of stored ones, and fails.
        """
        if not DEADLINES.is_there:
            return super().test(*args, **kwargs)
        deadline, self.deadline = self.deadline, None
        try:
            return super().test(*args, **kwargs)
        finally:
            self.deadline = deadline


def lakehead_dag(
    dag_id: str,
    *,
    doc_md: str | None,
    tags: tuple[str, ...],
    schedule: str | None = None,
    needs: str = "",
    deadline: timedelta | None = None,
    params: Mapping[str, Param] | None = None,
) -> DAG:
    """Return a DAG as all of Lakehead's are: one run at a time (the work of two concurrent runs
    counts once, but costs twice), no catch-up, an alert for a run that is not done `deadline` after
    it was queued, a param `conn_id` beside `params`, and a table of these below `doc_md`. One that
    `needs` a param has no schedule before the Variable has a default for it. The Variable
    `lakehead_dags` overrides these arguments. Raises ValueError for an invalid Variable.
    """
    settings = DagSettings.read()
    if dag_id in settings.deadline_minutes:
        minutes = settings.deadline_minutes[dag_id]
        deadline = None if minutes is None else timedelta(minutes=minutes)
    if needs and not settings.params.get(dag_id, {}).get(needs):
        schedule = None
    own = {
        "conn_id": Param(settings.conn_id, description=CONN_ID.description, **CONN_ID.schema),
        **(params or {}),
    }
    return LakeheadDag(
        dag_id,
        schedule=settings.schedules.get(dag_id, schedule),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        doc_md=_with_params(doc_md or "", own, without=_without(own, deadline)),
        tags=["lakehead", *tags, *settings.tags],
        params=settings.params_of(dag_id, own),
        **_alerts(deadline, settings.deadline_callback),
        default_args={
            "owner": settings.owner,
            "pool": settings.pool,
            "retries": settings.retries,
            "retry_delay": timedelta(seconds=settings.retry_delay_s),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=10),
        },
    )


def _without(params: Mapping[str, Param], deadline: timedelta | None) -> list[str]:
    """Return what a DAG lacks on this Airflow, in sentences."""
    lacks = [APPROVALS] if "approved_plan" in params else []
    if deadline is not None and not DEADLINES.is_there:
        lacks.append(DEADLINES)
    return [one.without for one in lacks]


def _with_params(doc: str, params: Mapping[str, Param], *, without: list[str]) -> str:
    """Return the documentation of a DAG with a table of its params."""
    rows = [f"| `{name}` | {one.description} |" for name, one in params.items()]
    lines = [doc.rstrip(), *(line for one in without for line in ("", one))]
    return "\n".join([*lines, "", "| Param | Meaning |", "| --- | --- |", *rows, ""])


def approval(subject: str, form: JobForm, *, counts: Sequence[str] = ()) -> BaseOperator:
    """Return the task `approve`, between a task `plan` and the planned work: it shows the plan's
    result and waits for a decision of a user. Without one in a day the work is rejected.

    An Airflow without approvals has one that compares the param `approved_plan` with the digest of
    the request and of these `counts` of the plan.
    """
    if not APPROVALS.is_there:
        return PlanDigestOperator(
            task_id="approve",
            request={**CLUSTER, "options": dict(form.options)},
            counts=counts,
            approved="{{ params.approved_plan }}",
        )
    return ApprovalOperator(
        task_id="approve",
        subject=subject,
        body=_PLANNED,
        defaults=ApprovalOperator.REJECT,
        response_timeout=timedelta(days=1),
    )


def _alerts(deadline: timedelta | None, callback: str) -> dict[str, Any]:
    """Return the arguments of a DAG for its deadline; none where Airflow has no deadlines."""
    if deadline is None or not DEADLINES.is_there:
        return {}
    alert = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=deadline,
        callback=AsyncCallback(callback),
        **({"name": "lakehead"} if AIRFLOW >= (3, 3) else {}),
    )
    return {"deadline": alert}
