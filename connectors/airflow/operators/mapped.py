"""A job mapped over its items: a task plans, as many as there are items work, one sums up.

So each item has a state, a log and retries of its own in Airflow, and items run side by side on
whatever workers there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import TriggerRule
from airflow.sdk import Context, TaskGroup, XComArg

from lakehead.connectors.airflow.jobs import checked_job, job_named
from lakehead.connectors.airflow.operators.base import LakeheadOperator, with_table_events

_MAX_TASKS = 64
_LIMIT = 1024
"""The most items that Airflow maps, unless its settings say otherwise (core.max_map_length)."""
_PLANNED = "planned"
_OF_OUR_RUNNERS = frozenset(
    {"dry_run", "processes", "spark_config", "spark_master", "spark_remote", "workers"}
)


class LakeheadPlanOperator(LakeheadOperator):
    """Plans a job, and returns its items for ``LakeheadWorkOperator.expand``.

    :param job: see LakeheadJobOperator.
    :param options: the job's own options, by name. (templated)
    :param max_tasks: items at most. An item holds several units of work where there are more, and
        where they are small: a task takes Airflow seconds. Tables have an item each.

    An item names what it holds in some hundred bytes, whatever that is. The plan's totals go to
    XCom under ``planned``. A dry run returns no items.
    """

    template_fields: Sequence[str] = (*LakeheadOperator.template_fields, "options")
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}

    def __init__(
        self,
        *,
        job: str,
        options: Mapping[str, Any] | None = None,
        max_tasks: int = _MAX_TASKS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 1 <= max_tasks <= _LIMIT:
            raise ValueError(f"max_tasks is {max_tasks}: use 1 to {_LIMIT}")
        self.job = checked_job(job)
        self.options = dict(options or {})
        self.max_tasks = max_tasks

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Plan the job."""
        from lakehead.connectors.airflow.jobs import cut
        from lakehead.storage.jobs.options import parsed

        with self._work(f"plan of {self.job}", context) as place, self._cancellation.breaks_in():
            job = job_named(self.job)
            planned = job.plan(place, parsed(job.name, job.options, self.options))
        fields = planned.as_fields(is_dry_run=self.is_plan_only)
        self._log_fields(f"plan of {self.job}", fields)
        context["ti"].xcom_push(key=_PLANNED, value=fields)
        if self.is_plan_only:
            return []
        tasks_max = min(self.max_tasks, job.tasks_worth(planned))
        return [chunk.to_json() for chunk in cut(planned.units, tasks_max)]


class LakeheadWorkOperator(LakeheadOperator):
    """Does one item of a job: ``LakeheadWorkOperator.partial(…).expand(item=plan.output)``.

    :param job: as the plan's.
    :param options: as the plan's. (templated)
    :param item: one that LakeheadPlanOperator returned.

    It plans again and does what is left of the item, so another try repeats nothing that is done.
    """

    template_fields: Sequence[str] = (*LakeheadOperator.template_fields, "options", "item")
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json", "item": "json"}

    def __init__(
        self,
        *,
        job: str,
        item: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("map_index_template", "{{ task.item['label'] }}")
        super().__init__(**with_table_events(job, kwargs))
        self.job = checked_job(job)
        self.options = dict(options or {})
        self.item = item

    def execute(self, context: Context) -> dict[str, Any]:
        """Do the item."""
        from lakehead.connectors.airflow.jobs import Chunk
        from lakehead.storage.jobs.job import Fields
        from lakehead.storage.jobs.options import parsed

        with (
            self._work(self.job, context, is_part=True) as place,
            self._cancellation.breaks_in(),
        ):
            job, chunk = job_named(self.job), Chunk.of_json(self.item)
            options = parsed(job.name, job.options, self.options)
            planned = job.plan(place, options)
            units = [unit for unit in planned.units if chunk.has(unit.key)]
            if len(units) < chunk.units:
                self.log.info(
                    "%d of %d units are done already", chunk.units - len(units), chunk.units
                )
            fields: Fields = {}
            if units:
                result = job.run(place, options, units)
                result.check()
                fields = result.as_fields()
        self._log_fields(f"{self.job}, {chunk.label}", fields)
        return fields


class LakeheadSummaryOperator(LakeheadOperator):
    """Adds up the results of a mapped job, and fails if they contain damage.

    :param job: as the plan's.
    :param planned: what the plan knew: ``XComArg(plan, key="planned")``. (templated)
    :param results: the results of the items: ``work.output``. (templated)
    """

    template_fields: Sequence[str] = ("planned", "results")

    def __init__(
        self,
        *,
        job: str,
        planned: Mapping[str, Any] | XComArg | None,
        results: Iterable[Mapping[str, Any]] | XComArg | None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.NONE_FAILED)
        super().__init__(**kwargs)
        self.job = checked_job(job)
        self.planned = planned
        self.results = results

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - as Airflow calls it
        """Sum up."""
        from lakehead.storage.jobs.job import Fields, sum_of_fields

        # Templates have been rendered: what was an XComArg is its value, fetched piece by piece.
        planned: Any = self.planned
        results: Any = self.results
        fields: Fields = dict(planned or {})
        for one in results or ():
            fields = sum_of_fields(fields, dict(one or {}))
        self._log_fields(self.job, fields)
        self._finish(job_named(self.job), fields)
        return fields


def lakehead_job(
    job: str,
    *,
    group_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    max_tasks: int = _MAX_TASKS,
    max_active_tis_per_dagrun: int | None = None,
    runner: str = "local",
    spark_submit: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TaskGroup:
    """Return a group of the tasks `plan`, `work` (mapped) and `summary` of a job.

    :param max_active_tis_per_dagrun: how many items are worked on at once.
    :param runner: also ``spark_submit``: each item is a Spark application, by Airflow's Spark
        provider; its log has the result then, and there is no summary.
    :param spark_submit: with that, arguments of SparkSubmitOperator (``conn_id``, ``conf``, …).
    :param kwargs: what all three get: those of LakeheadOperator, and Airflow's own such as
        ``retries``, ``pool``.
    """
    is_submitted = runner == "spark_submit"
    planning = {**kwargs, "runner": "local" if is_submitted else runner}
    mapped = {
        "task_id": "work",
        "job": job,
        "options": dict(options or {}),
        "map_index_template": "{{ task.item['label'] }}",
        "max_active_tis_per_dagrun": max_active_tis_per_dagrun,
    }
    with TaskGroup(group_id or checked_job(job)) as group:
        plan = LakeheadPlanOperator(
            task_id="plan", job=job, options=options, max_tasks=max_tasks, **planning
        )
        if is_submitted:
            from lakehead.connectors.airflow.operators.spark_submit import (
                LakeheadSparkSubmitOperator,
            )

            theirs = {name: kwargs[name] for name in kwargs if name not in _OF_OUR_RUNNERS}
            submitted = {**mapped, **theirs, **(spark_submit or {})}
            LakeheadSparkSubmitOperator.partial(**submitted).expand(item=plan.output)
            return group
        with_events = with_table_events(job, planning)
        work = LakeheadWorkOperator.partial(**mapped, **with_events).expand(item=plan.output)
        LakeheadSummaryOperator(
            task_id="summary",
            job=job,
            planned=XComArg(plan, key=_PLANNED),
            results=work.output,
            **planning,
        )
    return group
